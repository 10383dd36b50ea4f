"""Who may: runs at once, runs that died, leases that were lost."""

from __future__ import annotations

import pytest
from expect import OTHER, PATIENT, assert_serves, mode_of, unsafe_at_boot
from road import STATE, Host, Outcome, Road


def assert_refused(second: Outcome, owner: int) -> None:
    assert second.rc == 2, second.told()
    assert second.codes()[0] == "lease-held", second.told()
    assert f"pid {owner}, since " in second.output
    assert "sglang_server_lease_override=" in second.output


@pytest.mark.kind("kill, lease")
def test_a_second_run_and_then_the_first_is_killed(host: Host, road: Road) -> None:
    """A second run fails at once and names the owner; ansible-playbook gets SIGKILL, and the next run ends its work."""
    mode = OTHER[mode_of(host)]
    host.misbehave(only=mode, health=503)  # so that the first one waits
    first = road.start(f"{mode}.yml", *PATIENT)
    first.wait_for("Wait until it is ready")
    second = road.run(f"{mode}.yml")
    assert_refused(second, first.process.pid)
    first.kill()
    seen = host.seen()
    assert unsafe_at_boot(seen) == ""
    assert seen["lease"]["controller"]["pid"] == first.process.pid
    host.misbehave()
    again = road.run(f"{mode}.yml")
    assert again.rc == 0, again.told()
    assert "the run that held the lease is dead" in again.output
    assert_serves(host, mode)


@pytest.mark.kind("lease")
@pytest.mark.full
def test_two_runs_at_once(host: Host, road: Road) -> None:
    """A second run while one is at work fails at once, and the first one goes on to its end."""
    mode = OTHER[mode_of(host)]
    host.misbehave(only=mode, health=503)  # so that the first one waits
    first = road.start(f"{mode}.yml", *PATIENT)
    first.wait_for("Wait until it is ready")
    second = road.run(f"{mode}.yml")
    assert_refused(second, first.process.pid)
    host.misbehave()
    done = first.wait()
    assert done.rc == 0, done.told()
    assert_serves(host, mode)


@pytest.mark.kind("lease")
@pytest.mark.full
def test_another_controllers_dead_run(host: Host, road: Road) -> None:
    """The lease of another controller (here a clone with our machine-id) is respected until a person overrides it."""
    mode = OTHER[mode_of(host)]
    run = road.start(f"{mode}.yml")
    run.wait_for("Wait until it is ready")
    run.kill()
    host.sh(f'sed -i \'s/"host": "[^"]*"/"host": "elsewhere"/\' {STATE}/lease.json')
    refused = road.run(f"{mode}.yml")
    assert refused.codes()[0] == "lease-held", refused.told()
    token = host.seen()["lease"]["token"]
    done = road.run(f"{mode}.yml", "-e", f"sglang_server_lease_override={token}")
    assert done.rc == 0, done.told()
    assert_serves(host, mode)


@pytest.mark.kind("lease")
@pytest.mark.full
def test_a_run_that_lost_its_lease_changes_nothing_more(host: Host, road: Road) -> None:
    """A run whose lease was taken over stops at its next step and leaves the instance to the other one."""
    before = mode_of(host)
    mode = OTHER[before]
    host.misbehave(only=mode, health=503)
    run = road.start(f"{mode}.yml", *PATIENT)
    run.wait_for("Wait until it is ready")
    host.sh(f'sed -i \'s/"token": "[^"]*"/"token": "another"/\' {STATE}/lease.json')
    done = run.wait()
    assert done.rc == 2, done.told()
    assert done.codes()[0] == "lease-lost", done.told()
    assert "another" in host.seen()["lease"]["token"]
    assert host.seen()["active"] == "active"  # not even stopped
    host.sh(f"rm {STATE}/lease.json")
    host.misbehave()
    again = road.run(f"{mode}.yml")
    assert again.rc == 0, again.told()
    assert_serves(host, mode)
