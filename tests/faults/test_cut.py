"""The network or the host goes away in the middle."""

from __future__ import annotations

import time

import pytest
from expect import OTHER, PATIENT, assert_failed, assert_serves, mode_of
from road import Host, Road


def cut_and_heal(host: Host) -> None:
    host.tool("cut", host.name)
    time.sleep(8)
    host.tool("heal", host.name)


@pytest.mark.kind("cut, gate")
def test_cut_healed_and_then_refused(host: Host, road: Road) -> None:
    """Unplugged while the new server starts, which then accepts no drafts: the old one comes back all the same."""
    before = mode_of(host)
    host.misbehave(only=OTHER[before], accept=0)
    run = road.start(f"{OTHER[before]}.yml")
    run.wait_for("Wait until it is ready")
    cut_and_heal(host)
    done = run.wait()
    assert_failed(done, "accept-length-below-floor", f"again\n({before}, SGLang")
    assert_serves(host, before)


@pytest.mark.kind("cut")
@pytest.mark.full
@pytest.mark.parametrize(
    "task",
    [
        "Wait until it is ready",
        "Wait until it has drained and ended",
        "Measure the accept length and gate it",
    ],
)
def test_cut_and_healed(host: Host, road: Road, task: str) -> None:
    """The network is unplugged for some seconds during a wait; the run goes on when it is back."""
    before = mode_of(host)
    mode = OTHER[before]
    run = road.start(f"{mode}.yml")
    if "drained" in task:
        run.wait_for("Refuse new connections")
        host.ask(10, before)
    run.wait_for(task)
    cut_and_heal(host)
    done = run.wait()
    assert done.rc == 0, done.told()
    assert_serves(host, mode)


@pytest.mark.kind("cut")
@pytest.mark.full
def test_rebooted_in_the_middle(host: Host, road: Road) -> None:
    """The host reboots while the new server starts: nothing half-made comes up, the next run converges."""
    mode = OTHER[mode_of(host)]
    host.misbehave(only=mode, health=503)
    run = road.start(f"{mode}.yml", *PATIENT)
    run.wait_for("Wait until it is ready")
    host.sh("systemctl reboot", check=False)
    run.kill()
    until = time.monotonic() + 60
    while host.sh("systemctl is-system-running", check=False) not in ("running", "degraded"):
        assert time.monotonic() < until
        time.sleep(1)
    assert host.seen()["active"] == "inactive"
    host.misbehave()
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    assert_serves(host, mode)
