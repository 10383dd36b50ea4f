"""SIGKILL to ansible-playbook at every task boundary of a transition, in both directions, and inside every module that
changes something. The boundaries are those of a recorded run, so a new task is in the matrix by itself.

Kills come in rows: the run after a killed one is killed at a later point, and the last one of a row goes to its end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

import pytest
import results
from expect import OTHER, assert_serves, mode_of, problems, unsafe_at_boot
from points import BOUNDARY, LAST, POWER, Point, chains_of, points_of, share_of, told
from road import STATE, Host, Outcome, Road

Found = dict[str, dict[str, object]]


def forget_target(host: Host) -> None:
    """Remove every deployment but the current one, so that the transition builds anew."""
    seen = host.seen()
    for digest in set(seen["deployments"]) - {seen["current"]}:
        host.sh(f"rm -rf {STATE}/deployments/{digest}")


def recorded(host: Host, road: Road, mode: str) -> list[Point]:
    """The points of a recorded run to ``mode``; of one that an earlier sitting recorded with this very commit."""
    if mode in (known := results.recorded_now()):
        return [Point(**one) for one in known[mode]]
    if host.seen()["mode"] == mode:
        there = road.run(f"{OTHER[mode]}.yml")
        assert there.rc == 0, there.told()
    forget_target(host)
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    points = points_of(mode, done.events)
    results.write(results.stamped({"recorded": mode, "points": [asdict(one) for one in points]}))
    return points


@pytest.mark.kind("kill")
@pytest.mark.full
def test_killed_at_every_boundary(
    host: Host, road: Road, record_property: Callable[[str, object], None]
) -> None:
    """SIGKILL at every task boundary of both directions and inside every changing module; the next run converges."""
    until = time.monotonic() + 60 * float(os.environ.get("AERIE_FAULTS_MINUTES", "1000"))
    start = str(host.seen()["mode"])
    points = [one for mode in (OTHER[start], start) for one in recorded(host, road, mode)]
    done = results.points_now()
    # A row begins with the other mode accepted, so the first one goes to the mode that does not serve now.
    now = str(host.seen()["mode"])
    points.sort(key=lambda one: one.mode == now)
    for whole in share_of(chains_of(points), os.environ.get("AERIE_FAULTS_PART", "1/1")):
        row = [one for one in whole if one.name not in done or done[one.name]["wrong"]]
        if time.monotonic() > until:
            break
        if not row:
            continue
        made = killed_again_and_again(host, road, row, until)
        for name, found in made.items():
            results.write(results.stamped({"point": name, **found}))
        done |= made
        print(told(points, done), flush=True)
    record_property("detail", told(points, done))
    record_property("rest", str(sum(one.name not in done for one in points) or ""))
    wrong = [
        f"{one.name}: {done[one.name]['wrong']}" for one in points if done.get(one.name, {}).get("wrong")
    ]
    assert not wrong, "\n".join([f"{len(wrong)} of {len(done)}", *wrong])


def killed_again_and_again(host: Host, road: Road, row: Sequence[Point], until: float) -> Found:
    """Runs killed at the points of the row, one after the other, and one to the end. Returns what was wrong of each.

    until: when no other one is killed any more, by the monotonic clock."""
    mode = row[0].mode
    if host.seen()["mode"] == mode:
        done = road.run(f"{OTHER[mode]}.yml")
        assert done.rc == 0, done.told()
    forget_target(host)
    made: Found = {}
    for point in row:
        if made and time.monotonic() > until:
            break
        killed = road.run(f"{mode}.yml", kill_at=point.task, delay=point.delay, everything=point.how == POWER)
        if point.how == POWER and killed.rc == -9:
            host.end_sessions()
        # The run before this one converged so far: it came to this point, or to its end.
        wrong = unsafe_at_boot(host.seen()) or ("" if killed.rc in (-9, 0) else went_wrong(killed))
        if killed.rc not in (-9, 0) and made:
            made[next(reversed(made))] |= {"wrong": wrong}
            break
        in_time = killed.rc == -9 and killed.events[-1]["event"] == "task"
        if not killed.rc and point.how == BOUNDARY:
            wrong = f"the run never came to it\n{killed.told()[-500:]}"
        made[point.name] = {"wrong": wrong, "hit": in_time and point.how != BOUNDARY}
    again = road.run(f"{mode}.yml")
    left = problems(host.seen(), mode)
    if not any(one["name"].endswith(LAST) for one in again.tasks()):
        # Killed when all was recorded: a run with nothing to do takes no lease, so the dead one stays until the next.
        left = [line for line in left if not line.startswith("a lease is left")]
    if again.rc or left:
        made[next(reversed(made))] |= {"wrong": f"{left}\n{went_wrong(again)}"}
        back = road.run(f"{mode}.yml")
        assert back.rc == 0, back.told()
    return made


@pytest.mark.kind("kill")
@pytest.mark.full
@pytest.mark.parametrize(
    ("task", "then"),
    [
        ("Stop the old server", "back"),
        ("Make the new deployment current and start it", "baseline"),
        ("Check its sockets, admit connections, record it as accepted", "back"),
    ],
)
def test_killed_and_then_another_way(host: Host, road: Road, task: str, then: str) -> None:
    """SIGKILL at a task of the way to one mode, and the next run goes to another one: it converges all the same."""
    before = mode_of(host)
    killed = road.run(f"{OTHER[before]}.yml", kill_at=task)
    assert killed.rc == -9, killed.told()
    assert unsafe_at_boot(host.seen()) == ""
    mode = before if then == "back" else then
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    assert_serves(host, mode)


@pytest.mark.kind("kill, rollback")
@pytest.mark.full
@pytest.mark.parametrize("task", ["Stop the old server", "Wait until it is ready"])
def test_a_rollback_is_killed(host: Host, road: Road, task: str) -> None:
    """SIGKILL to a rollback.yml on its way; called again it goes to the deployment that the first one was for."""
    before = mode_of(host)
    there = road.run(f"{OTHER[before]}.yml")
    assert there.rc == 0, there.told()
    killed = road.run("rollback.yml", kill_at=task)
    assert killed.rc == -9, killed.told()
    done = road.run("rollback.yml")
    assert done.rc == 0, done.told()
    assert_serves(host, before)


def went_wrong(done: Outcome) -> str:
    return done.told()[-1500:]
