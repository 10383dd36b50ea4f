"""SIGKILL to ansible-playbook at every task boundary of a transition, in both directions, and inside every module that
changes something. The boundaries are those of a recorded run, so a new task is in the matrix by itself."""

from __future__ import annotations

import os

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


def transition(road: Road, host: Host, mode: str) -> tuple[list[dict[str, object]], list[int]]:
    """Record a run to ``mode``: its tasks between lease and release, and which of them changed something."""
    forget_target(host)
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    names = [str(one["name"]) for one in done.tasks()]
    first = next(n for n, name in enumerate(names) if FIRST in name)
    last = max(n for n, name in enumerate(names) if LAST in name)
    return done.tasks()[first : last + 2], [n for n in done.changed() if first <= n <= last]


@pytest.mark.kind("kill")
@pytest.mark.full
def test_killed_at_every_boundary(host: Host, road: Road, record_property: pytest.RecordProperty) -> None:
    """SIGKILL at every task boundary of both directions and inside every changing module; the next run converges."""
    start = str(host.seen()["mode"])
    recorded = {OTHER[start]: transition(road, host, OTHER[start]), start: transition(road, host, start)}
    # A point of each direction in turn, so that each kill starts from the other mode, accepted.
    points = {
        mode: [(int(str(one["n"])), 0.0, str(one["name"])) for one in tasks]
        + [(n, delay, f"inside task {n}") for n in changed for delay in INSIDE]
        for mode, (tasks, changed) in recorded.items()
    }
    limit = int(os.environ.get("AERIE_FAULTS_POINTS", "1000"))
    failures, count = [], 0
    for step in range(min(limit, max(len(one) for one in points.values()))):
        for mode in (OTHER[start], start):
            n, delay, name = points[mode][step % len(points[mode])]
            forget_target(host)
            killed = road.run(f"{mode}.yml", kill_at=n, delay=delay)
            count += 1
            unsafe = unsafe_at_boot(host.seen())
            again = road.run(f"{mode}.yml")
            left = problems(host.seen(), mode)
            if unsafe or again.rc or left or killed.rc not in (-9, 0):
                failures.append(
                    f"{mode} killed at {n} ({name}, +{delay} s): {unsafe} {left}\n{again.told()[-1500:]}"
                )
                back = road.run(f"{mode}.yml")
                assert back.rc == 0, back.told()
    record_property("detail", f"{count - len(failures)} of {count} points converge")
    assert not failures, f"{len(failures)} of {count}\n" + "\n".join(failures)
