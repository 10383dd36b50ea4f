"""Differences that need no restart: lines of the unit, and gates that are asked more than before."""

from __future__ import annotations

import pytest
from expect import assert_failed, assert_serves, mode_of
from road import STATE, UNIT, Host, Road


def started(host: Host) -> str:
    """When systemd started what runs, and how long it would wait for its stop."""
    return host.sh(f"systemctl show {UNIT} -p ExecMainStartTimestampMonotonic -p MainPID --value")


@pytest.mark.kind("no restart")
def test_a_longer_drain_is_written_without_a_restart(host: Host, road: Road) -> None:
    """Another drain time-out is written into the unit and read by systemd; the server is not restarted."""
    mode, before = mode_of(host), started(host)
    longer = ("-e", '{"sglang_server_drain_timeout": 25}')
    foreseen = road.run(f"{mode}.yml", "--check", "--diff", *longer)
    assert foreseen.rc == 0, foreseen.told()
    for word in (
        "without TimeoutStopSec=85, with TimeoutStopSec=100; no restart needed",
        "+TimeoutStopSec=100",
    ):
        assert word in foreseen.output, (word, foreseen.told())
    assert "TimeoutStopSec=85" in host.sh(f"cat /etc/systemd/system/{UNIT}")

    done = road.run(f"{mode}.yml", *longer)
    assert done.rc == 0, done.told()
    assert started(host) == before
    assert host.sh(f"systemctl show {UNIT} -p TimeoutStopUSec -p NeedDaemonReload --value") == "1min 40s\nno"
    assert "TimeoutStopSec=100" in host.sh(f"cat {STATE}/current/spec.json")
    assert_serves(host, mode)
    again = road.run(f"{mode}.yml", *longer)
    assert (again.rc, again.changed()) == (0, []), again.told()
    assert "drift: " not in road.run("status.yml").output


@pytest.mark.kind("no restart")
def test_a_higher_floor_is_measured_without_a_restart(host: Host, road: Road) -> None:
    """A raised floor measures the running server: passed it is recorded, missed the run fails and the server stays."""
    mode, before = mode_of(host), started(host)
    passed = road.run(f"{mode}.yml", "-e", '{"sglang_server_min_accept_length": 2.2}')
    assert passed.rc == 0, passed.told()
    assert "accept floor 2.0 -> 2.2; no restart needed" in passed.output
    assert host.seen()["state"]["history"][0]["gates"]["min_accept_length"] == 2.2

    missed = road.run(f"{mode}.yml", "-e", '{"sglang_server_min_accept_length": 3.9}')
    assert_failed(missed, "accept-length-below-floor", "was left to serve on", "accept floor 2.2 -> 3.9")
    assert started(host) == before
    assert_serves(host, mode)
    assert host.seen()["state"]["history"][0]["gates"]["min_accept_length"] == 2.2
