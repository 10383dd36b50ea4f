"""SIGKILL to ansible-playbook at every task boundary of a transition, in both directions, and inside every module that
changes something. The boundaries are those of a recorded run, so a new task is in the matrix by itself."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import pytest
from expect import OTHER, problems, unsafe_at_boot
from road import STATE, Host, Road

FIRST, LAST = "Take the lease", "Give the lease back"
# Seconds after a task's start at which its module is likely at work on the host.
INSIDE = (0.4, 1.0)


def forget_target(host: Host) -> None:
    """Remove every deployment but the current one, so that the transition builds anew."""
    seen = host.seen()
    for digest in set(seen["deployments"]) - {seen["current"]}:
        host.sh(f"rm -rf {STATE}/deployments/{digest}")


@dataclass(frozen=True)
class Point:
    """Where a run is killed: number of the task start, seconds after it, and what a person calls it."""

    n: int
    delay: float
    name: str


def points_of(road: Road, host: Host, mode: str) -> list[Point]:
    """Record a run to ``mode`` and list where it can be killed between taking the lease and giving it back.

    A task that was skipped did nothing, so the boundary before it is the one before the next task.
    """
    forget_target(host)
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    names = {int(one["n"]): str(one["name"]) for one in done.tasks()}
    first = min(n for n, name in names.items() if FIRST in name)
    last = max(n for n, name in names.items() if LAST in name)
    skipped = {one["n"] for one in done.events if one["event"] == "skipped"}
    boundaries = [Point(n, 0.0, names[n]) for n in range(first, last + 2) if n in names and n not in skipped]
    inside = [Point(n, delay, names[n]) for n in done.changed() if first <= n <= last for delay in INSIDE]
    return boundaries + inside


def spread(points: list[Point]) -> list[Point]:
    """In an order whose beginnings, wherever it is stopped, are spread over all of them."""
    return [points[i] for i in sorted(range(len(points)), key=lambda i: i * 0.6180339887 % 1)]


@pytest.mark.kind("kill")
@pytest.mark.full
def test_killed_at_every_boundary(host: Host, road: Road, record_property: pytest.RecordProperty) -> None:
    """SIGKILL at every task boundary of both directions and inside every changing module; the next run converges."""
    start = str(host.seen()["mode"])
    points = {mode: spread(points_of(road, host, mode)) for mode in (OTHER[start], start)}
    total = sum(len(one) for one in points.values())
    until = time.monotonic() + 60 * float(os.environ.get("AERIE_FAULTS_MINUTES", "1000"))
    # A point of each direction in turn, so that each kill starts from the other mode, accepted.
    turns = (
        (mode, points[mode][step]) for step in range(total) for mode in points if step < len(points[mode])
    )
    failures, count = [], 0
    for mode, point in turns:
        if time.monotonic() > until:
            break
        count += 1
        if wrong := kill_and_converge(host, road, mode, point):
            failures.append(wrong)
        record_property("detail", f"{count - len(failures)} of {count} points converge; there are {total}")
        print(f"{count}/{total} {mode} {point}: {'FAILED' if wrong else 'converges'}", flush=True)
    assert not failures, f"{len(failures)} of {count}\n" + "\n".join(failures)


def kill_and_converge(host: Host, road: Road, mode: str, point: Point) -> str:
    """What was wrong after a run killed there and the next one; '' for nothing."""
    if host.seen()["mode"] == mode:  # the other direction has more points
        done = road.run(f"{OTHER[mode]}.yml")
        assert done.rc == 0, done.told()
    forget_target(host)
    killed = road.run(f"{mode}.yml", kill_at=point.n, delay=point.delay)
    unsafe = unsafe_at_boot(host.seen())
    again = road.run(f"{mode}.yml")
    left = problems(host.seen(), mode)
    # -9: killed. 0: it ended before a kill inside its last module.
    if not unsafe and not again.rc and not left and killed.rc in (-9, 0):
        return ""
    back = road.run(f"{mode}.yml")
    assert back.rc == 0, back.told()
    return f"{mode} killed at {point} (rc {killed.rc}): {unsafe} {left}\n{again.told()[-1500:]}"
