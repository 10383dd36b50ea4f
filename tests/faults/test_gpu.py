"""GPU memory that is not free. The GPU is a double of the driver's library (tests/nvml), whose memory follows real
processes; everything above the library is real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from expect import OTHER, assert_failed, assert_serves, mode_of, problems
from road import Host, Road

CONTAINER = "ab" * 32


@contextmanager
def holding(host: Host, unit: str, *words: str) -> Iterator[None]:
    """A process of another user in that unit, whose memory is on our GPU."""
    host.gpu({"id": "theirs", "cgroup": f"/sys/fs/cgroup/system.slice/{unit}", "bytes": 512 << 20})
    host.sh(f"systemd-run --unit={unit} --uid=nobody {' '.join(words)} sleep 86400 > /dev/null 2>&1 &")
    try:
        yield
    finally:
        host.sh(f"systemctl stop {unit}", check=False)
        host.gpu()


@pytest.mark.kind("gpu")
@pytest.mark.full
def test_memory_is_freed_late(host: Host, road: Road) -> None:
    """The old server's GPU memory stays for two seconds after its end: waited for, then the new one starts."""
    mode = OTHER[mode_of(host)]
    host.gpu(free_ms=2000)
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    prove = next(one for one in done.tasks() if "Wait until the GPUs hold nothing" in one["name"])
    after = next(one for one in done.tasks() if one["n"] == prove["n"] + 1)
    assert after["t"] - prove["t"] > 1.0, "it was not waited for"
    assert_serves(host, mode)


@pytest.mark.kind("gpu")
@pytest.mark.full
def test_memory_is_never_freed(host: Host, road: Road) -> None:
    """The old server's GPU memory stays after its end: nothing is started, both ways say so; the next run converges."""
    mode = OTHER[mode_of(host)]
    host.gpu(free_ms=None, listed_after_death=False)
    done = road.run(f"{mode}.yml")
    assert_failed(
        done, "gpu-held-no-process", "nvidia-smi --gpu-reset -i 0", "failed too", "is stopped and not enabled"
    )
    seen = host.seen()
    assert (seen["active"], seen["boot"], seen["state"]["phase"]) == ("inactive", "disabled", "failed")
    host.gpu()
    again = road.run(f"{mode}.yml")
    assert again.rc == 0, again.told()
    assert_serves(host, mode)


@pytest.mark.kind("gpu")
@pytest.mark.full
@pytest.mark.parametrize("case", ["user", "container", "unknown"])
def test_somebody_holds_it_before(host: Host, road: Road, case: str) -> None:
    """Another user's process, a container or a pid that is not there holds our GPU: refused, nothing touched."""
    before = host.seen()
    mode = OTHER[before["mode"]]
    if case == "unknown":
        host.gpu({"id": "theirs", "pid": 999999, "always": True, "attributed": False})
        done = road.run(f"{mode}.yml")
        host.gpu()
        words = ["999999", "not visible"]
    else:
        unit, *more = ["intruder.service"] if case == "user" else [f"docker-{CONTAINER}.scope", "--scope"]
        with holding(host, unit, *more):
            done = road.run(f"{mode}.yml")
            assert host.sh(f"systemctl is-active {unit}") == "active"
        words = ["nobody", "intruder.service"] if case == "user" else ["nobody", CONTAINER[:12]]
    assert done.rc == 2, done.told()
    assert "gpus-taken" in done.codes(), (done.codes(), done.told())
    for word in words:
        assert word in done.last_words(), (word, done.last_words())
    after = host.seen()
    assert after["pid"] == before["pid"]
    assert problems(after, before["mode"]) == []


@pytest.mark.kind("gpu")
@pytest.mark.full
def test_somebody_takes_it_in_the_middle(host: Host, road: Road) -> None:
    """Another user's process takes our GPU while the old server drains: named, never ended; the next run converges."""
    mode = OTHER[mode_of(host)]
    host.gpu({"id": "theirs", "cgroup": "/sys/fs/cgroup/system.slice/intruder.service", "bytes": 512 << 20})
    host.sh(
        "systemd-run --collect --unit=waits sh -c 'while systemctl is-active -q sglang-default; do sleep 0.02; done;"
        " systemd-run --unit=intruder --uid=nobody sleep 86400'"
    )
    done = road.run(f"{mode}.yml")
    assert_failed(done, "gpu-held", "nobody", "intruder.service", "failed too", "is stopped and not enabled")
    assert host.sh("systemctl is-active intruder") == "active"
    host.sh("systemctl stop intruder waits", check=False)
    again = road.run(f"{mode}.yml")
    assert again.rc == 0, again.told()
    assert_serves(host, mode)
    host.gpu()


@pytest.mark.kind("drift")
@pytest.mark.full
def test_the_driver_was_upgraded(host: Host, road: Road) -> None:
    """The driver's packages were upgraded under the server: verify.yml and a run say so, the server is untouched."""
    before = host.seen()
    host.gpu(init="mismatch")
    found, refused = road.run("verify.yml"), road.run(f"{OTHER[before['mode']]}.yml")
    host.gpu()
    for done in (found, refused):
        assert done.rc == 2, done.told()
        assert "[gpu-driver-mismatch]" in done.last_words(), done.told()
    after = host.seen()
    assert after["pid"] == before["pid"]
    assert problems(after, before["mode"]) == []
