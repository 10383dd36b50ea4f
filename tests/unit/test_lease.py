"""The lease: who gets it, who loses it, what a step does without it."""

from __future__ import annotations

import errno
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance import lease_host
from ansible.module_utils.aerie.instance.lease import (
    Claim,
    Clock,
    Controller,
    Lease,
    check,
    granted,
    renewed,
    why_free,
)
from ansible.module_utils.aerie.instance.state import InstanceStore

NOW = Clock("boot-1", 10_000.0)
ME = Controller("laptop", "m1", "b1", "pid:[1]", 100, "7", "anna", "gpu1")
OTHER = replace(ME, host="ci", machine="m2", pid=200)
LEASE = Lease(
    "t0", OTHER, "boot-1", expires_s=10_300.0, ttl_s=900.0, phase="started", taken="2026-11-29T12:00:00Z"
)


@pytest.mark.parametrize(
    ("lease", "claim", "clock", "why"),
    [
        (None, Claim(ME), NOW, "free"),
        (LEASE, Claim(ME), NOW, ""),
        (LEASE, Claim(OTHER), NOW, "own"),
        (LEASE, Claim(replace(OTHER, alias="gpu1-too")), NOW, ""),
        (LEASE, Claim(ME, dead="t0"), NOW, "its run died on this controller"),
        (LEASE, Claim(ME, dead="t1"), NOW, ""),
        (LEASE, Claim(ME, override="t0"), NOW, "overridden"),
        (LEASE, Claim(ME, override="yes"), NOW, ""),
        (LEASE, Claim(ME), Clock("boot-1", 10_301.0), "expired"),
        # after a reboot it counts from the boot, since its owner may be waiting for the host
        (LEASE, Claim(ME), Clock("boot-2", 60.0), ""),
        (LEASE, Claim(ME), Clock("boot-2", 901.0), "expired"),
        # an expiry that lies further off than the lease is long is not believed
        (replace(LEASE, expires_s=9e9), Claim(ME), NOW, ""),
    ],
)
def test_who_gets_it(lease: Lease | None, claim: Claim, clock: Clock, why: str) -> None:
    assert why_free(lease, claim, clock) == why
    if why:
        got = granted(lease, claim, clock)
        assert got.controller == claim.controller
        assert got.left(clock) == got.ttl_s
        assert (got.token == "t0") == (why == "own")
    else:
        with pytest.raises(AerieError) as caught:
            granted(lease, claim, clock)
        text = caught.value.message()
        assert "[lease-held]" in text
        assert "anna@ci, pid 200" in text
        assert "2026-11-29T12:00:00Z" in text
        assert "at: started" in text
        assert "-e sglang_server_lease_override=t0" in text


def test_an_expiry_far_away_is_cut_to_the_length() -> None:
    assert replace(LEASE, expires_s=9e9).left(NOW) == 900.0


@pytest.mark.parametrize(
    ("lease", "token", "code"),
    [
        (LEASE, "t0", None),
        (renewed(LEASE, NOW), "t0", None),
        (replace(LEASE, expires_s=1.0), "t0", None),  # expired, but nobody took it
        (None, "", None),
        (replace(LEASE, expires_s=1.0), "", None),
        (LEASE, "", "lease-held"),
        (LEASE, "t1", "lease-lost"),
        (None, "t1", "lease-lost"),
    ],
)
def test_what_a_step_may(lease: Lease | None, token: str, code: str | None) -> None:
    if code is None:
        check(lease, token, NOW)
    else:
        with pytest.raises(AerieError) as caught:
            check(lease, token, NOW)
        assert caught.value.kind.code == code


@pytest.mark.parametrize("given", [None, [], {}, {"token": ""}, {"token": "a", "expires_s": "soon"}])
def test_what_is_no_lease_holds_nothing(given: object) -> None:
    assert Lease.from_mapping(given) is None


def test_it_survives_being_written(tmp_path: Path) -> None:
    assert Lease.from_mapping(LEASE.as_dict()) == LEASE


@pytest.fixture
def store(tmp_path: Path) -> InstanceStore:
    return InstanceStore(str(tmp_path), "default")


def test_taken_worked_under_released(store: InstanceStore) -> None:
    lease, why = lease_host.take(store, Claim(ME))
    assert why == "free"
    with lease_host.at_work(store, lease.token, "sglang_deployment", "built"):
        at_work = lease_host.read(store)
        assert at_work is not None
        assert at_work.step["pid"] == os.getpid()
        assert at_work.phase == "built"
    after = lease_host.read(store)
    assert after is not None
    assert after.step == {}
    with pytest.raises(AerieError, match="another run holds"):
        lease_host.take(store, Claim(OTHER))
    assert not lease_host.release(store, "another")
    assert lease_host.release(store, lease.token)
    assert lease_host.take(store, Claim(OTHER))[1] == "free"
    with pytest.raises(AerieError, match="is gone"), lease_host.at_work(store, lease.token, "m", "built"):
        pytest.fail("worked without its lease")


def test_without_a_state_directory_there_is_nothing_to_lock(store: InstanceStore) -> None:
    with lease_host.at_work(store, "", "sglang_traffic", "absent"):
        pass
    assert not store.root.exists()


def hold(store: InstanceStore, token: str, ready: object, end: object) -> None:
    with lease_host.at_work(store, token, "sglang_deployment", "built"):
        ready.set()  # type: ignore[attr-defined]
        end.wait(20)  # type: ignore[attr-defined]


def test_a_module_of_a_dead_run_is_waited_for(store: InstanceStore) -> None:
    lease, _ = lease_host.take(store, Claim(OTHER))
    fork = multiprocessing.get_context("fork")
    ready, end = fork.Event(), fork.Event()
    worker = fork.Process(target=hold, args=(store, lease.token, ready, end))
    worker.start()
    try:
        assert ready.wait(10)
        with pytest.raises(AerieError) as caught:
            lease_host.take(store, Claim(ME, dead=lease.token), patience_s=0.3)
        assert caught.value.kind.code == "lease-busy"
        assert f"module at work: sglang_deployment, pid {worker.pid}" in caught.value.message()
        end.set()
        mine, why = lease_host.take(store, Claim(ME, dead=lease.token), patience_s=10)
        assert why == "its run died on this controller"
    finally:
        end.set()
        worker.join(10)
    # its last write must not have brought the old lease back
    held = lease_host.read(store)
    assert held is not None
    assert held.token == mine.token


def test_a_killed_module_leaves_no_lock(store: InstanceStore) -> None:
    lease, _ = lease_host.take(store, Claim(OTHER))
    fork = multiprocessing.get_context("fork")
    ready, end = fork.Event(), fork.Event()
    worker = fork.Process(target=hold, args=(store, lease.token, ready, end))
    worker.start()
    assert ready.wait(10)
    worker.kill()
    worker.join(10)
    assert lease_host.take(store, Claim(ME, dead=lease.token), patience_s=5)[0].controller == ME


def no_room(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_keeps_nobody_from_stopping_a_server(
    store: InstanceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, _ = lease_host.take(store, Claim(ME))
    monkeypatch.setattr(lease_host, "write_json", no_room)
    worked = False
    with lease_host.at_work(store, lease.token, "sglang_deployment", "failed"):
        worked = True
    assert worked
    assert lease_host.read(store) == lease
    with pytest.raises(AerieError, match="another run holds"), lease_host.at_work(store, "", "m", "failed"):
        pytest.fail("worked without the lease")


def test_on_a_disk_that_turned_read_only_the_lock_still_holds(
    store: InstanceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, _ = lease_host.take(store, Claim(ME))
    really = os.open

    def read_only(path: object, flags: int, *more: int) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, "Read-only file system")
        return really(path, flags, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(lease_host.os, "open", read_only)
    monkeypatch.setattr(lease_host, "write_json", no_room)
    with (
        lease_host.at_work(store, lease.token, "sglang_deployment", "stopped"),
        pytest.raises(AerieError, match="a step of another run"),
        lease_host.locked(store, 0.1),
    ):
        pytest.fail("two at once")
    monkeypatch.setattr(Path, "unlink", no_room)
    assert lease_host.release(store, lease.token)
