"""What is not as the last run left it."""

from __future__ import annotations

import pytest
from expect import OTHER, assert_failed, assert_serves, mode_of
from road import STATE, UNIT, Host, Road


@pytest.mark.kind("tamper")
def test_the_unit_was_edited(host: Host, road: Road) -> None:
    """Somebody edited the unit file: the run names it, puts it back, restarts once, and is accepted."""
    mode = mode_of(host)
    host.sh(
        f"sed -i 's/^ProtectClock=yes$/ProtectClock=no/' /etc/systemd/system/{UNIT} && systemctl daemon-reload"
    )
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    assert f"unit file /etc/systemd/system/{UNIT} was edited" in done.output
    assert "ProtectClock=yes" in host.sh(f"cat /etc/systemd/system/{UNIT}")
    assert_serves(host, mode)


@pytest.mark.kind("tamper")
@pytest.mark.full
def test_half_made_deployment_of_a_dead_run(host: Host, road: Road) -> None:
    """A dead run left half a deployment: the next one removes it and builds its own."""
    mode = OTHER[mode_of(host)]
    seen = host.seen()
    for digest in set(seen["deployments"]) - {seen["current"]}:
        host.sh(f"mv {STATE}/deployments/{digest} {STATE}/deployments/.building-{digest}")
    host.sh(f"mkdir -p {STATE}/deployments/.building-0123456789abcdef/site")
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    assert not [name for name in host.seen()["deployments"] if name.startswith(".building")]
    assert_serves(host, mode)


@pytest.mark.kind("tamper")
@pytest.mark.full
def test_the_previous_deployment_is_gone(host: Host, road: Road) -> None:
    """What was to be gone back to is not there any more: stopped, and the message says why."""
    before = mode_of(host)
    host.misbehave(only=OTHER[before], at_load="crash")
    run = road.start(f"{OTHER[before]}.yml")
    run.wait_for("Wait until it is ready")
    seen = host.seen()
    for digest in {one["digest"] for one in seen["state"]["history"]} - {seen["current"]}:
        host.sh(f"rm -rf {STATE}/deployments/{digest}")
    done = run.wait()
    assert_failed(done, "start-failed", "is stopped and not enabled at boot", "its directory is gone")
    host.misbehave()
    again = road.run(f"{before}.yml")
    assert again.rc == 0, again.told()
    assert_serves(host, before)


@pytest.mark.kind("clock")
@pytest.mark.full
def test_the_clock_was_set_back(host: Host, road: Road) -> None:
    """All times on record are in the future, as after a clock set back (simulated): all goes on as ever, both ways."""
    before = mode_of(host)
    for mode in (OTHER[before], before):
        host.sh(f'sed -i \'s/"at": "20../"at": "2099/\' {STATE}/state.json {STATE}/current/accepted.json')
        assert '"2099-' in host.sh(f"cat {STATE}/state.json")
        verified = road.run("verify.yml")
        assert (verified.rc, verified.changed()) == (0, []), verified.told()
        done = road.run(f"{mode}.yml")
        assert done.rc == 0, done.told()
        assert_serves(host, mode)
        assert not host.seen()["state"]["history"][0]["at"].startswith("2099")
    again = road.run(f"{before}.yml")
    assert (again.rc, again.changed()) == (0, []), again.told()


@pytest.mark.kind("tamper")
@pytest.mark.full
def test_stopped_by_hand(host: Host, road: Road) -> None:
    """Somebody stopped the unit: the same mode starts it again."""
    mode = mode_of(host)
    host.sh(f"systemctl stop {UNIT}")
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    assert_serves(host, mode)


@pytest.mark.kind("tamper")
@pytest.mark.full
def test_start_limit_hit(host: Host, road: Road) -> None:
    """The server crashed until systemd gave up: the next run starts it all the same."""
    mode = mode_of(host)
    host.sh(
        f"for n in 1 2 3 4 5; do systemctl restart {UNIT}; sleep 0.2; done; systemctl is-failed {UNIT}",
        check=False,
    )
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    assert_serves(host, mode)


@pytest.mark.kind("tamper")
@pytest.mark.full
def test_the_unit_was_masked(host: Host, road: Road) -> None:
    """Somebody masked the unit: Aerie says so and does not undo it; unmasked, the next run starts it again."""
    mode = mode_of(host)
    place = f"/etc/systemd/system/{UNIT}"
    host.sh(f"systemctl stop {UNIT}; ln -sf /dev/null {place} && systemctl daemon-reload")
    refused = road.run(f"{mode}.yml")
    assert host.sh(f"readlink {place}", check=False) == "/dev/null", refused.told()
    assert refused.rc == 2, refused.told()
    assert "unit-masked" in refused.codes(), refused.told()
    host.sh(f"systemctl unmask {UNIT}")
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    assert_serves(host, mode)


@pytest.mark.kind("tamper")
@pytest.mark.full
def test_the_release_was_installed_again(host: Host, road: Road) -> None:
    """Somebody ran pip in the release's environment, over an edit: named by verify.yml, and put right or left alone."""
    mode = mode_of(host)
    python = "/opt/sglang/releases/0.5.23/bin/python"
    host.sh(f"echo edited >> $({python} -c 'import sglang.srt.server_args as a; print(a.__file__)')")
    found = road.run("verify.yml")
    again = "--quiet --force-reinstall --no-deps --no-index --find-links /srv/wheels sglang==0.5.23"
    host.sh(f"/opt/sglang/tools/bin/python -m pip --python {python} install {again}")
    verified, done = road.run("verify.yml"), road.run(f"{mode}.yml")
    assert found.rc == 2, found.told()
    assert "sglang/srt/server_args.py" in found.last_words(), found.told()
    assert (verified.rc, done.rc) == (0, 0), verified.told() + done.told()
    assert_serves(host, mode)


@pytest.mark.kind("tamper")
@pytest.mark.full
def test_the_environment_is_gone(host: Host, road: Road) -> None:
    """Somebody removed the release's environment: it is installed again, and what runs in the end is accepted."""
    mode = mode_of(host)
    host.sh("rm -rf /opt/sglang/venvs/0.5.23-*")
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    assert_serves(host, mode)
