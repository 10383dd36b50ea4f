"""SIGKILL to ansible-playbook at every task boundary of a transition, in both directions, and inside every module that
changes something. The boundaries are those of a recorded run, so a new task is in the matrix by itself."""

from __future__ import annotations

import os
import time

import pytest
import results
from expect import OTHER, problems, unsafe_at_boot
from points import BOUNDARY, POWER, Point, points_of, spread, told
from road import STATE, Host, Outcome, Road


def forget_target(host: Host) -> None:
    """Remove every deployment but the current one, so that the transition builds anew."""
    seen = host.seen()
    for digest in set(seen["deployments"]) - {seen["current"]}:
        host.sh(f"rm -rf {STATE}/deployments/{digest}")


def recorded(host: Host, road: Road, mode: str) -> list[Point]:
    forget_target(host)
    done = road.run(f"{mode}.yml")
    assert done.rc == 0, done.told()
    return points_of(mode, done.events)


@pytest.mark.kind("kill")
@pytest.mark.full
def test_killed_at_every_boundary(host: Host, road: Road, record_property: pytest.RecordProperty) -> None:
    """SIGKILL at every task boundary of both directions and inside every changing module; the next run converges."""
    until = time.monotonic() + 60 * float(os.environ.get("AERIE_FAULTS_MINUTES", "1000"))
    start = str(host.seen()["mode"])
    by_mode = {mode: recorded(host, road, mode) for mode in (OTHER[start], start)}
    points = spread([one for found in by_mode.values() for one in found])
    done = results.points_now()
    left = [one for one in points if one.name not in done or done[one.name]["wrong"]]
    while left and time.monotonic() < until:
        mode = OTHER[str(host.seen()["mode"])]  # each kill starts from the other mode, accepted
        point = next((one for one in left if one.mode == mode), left[0])
        left.remove(point)
        made = kill_and_converge(host, road, point)
        results.write(results.stamped({"point": point.name, **made}))
        done[point.name] = made
        print(f"{len(left)} left; {point.name}: {'FAILED' if made['wrong'] else 'converges'}", flush=True)
    record_property("detail", told(points, done))
    record_property("rest", str(sum(one.name not in done for one in points) or ""))
    wrong = [
        f"{one.name}: {done[one.name]['wrong']}" for one in points if done.get(one.name, {}).get("wrong")
    ]
    assert not wrong, "\n".join([f"{len(wrong)} of {len(done)}", *wrong])


def kill_and_converge(host: Host, road: Road, point: Point) -> dict[str, object]:
    """Kill a run there and run again. Returns what was wrong ('' for nothing), and whether the kill came in time."""
    mode = point.mode
    if host.seen()["mode"] == mode:  # the other direction has more points
        done = road.run(f"{OTHER[mode]}.yml")
        assert done.rc == 0, done.told()
    forget_target(host)
    killed = road.run(f"{mode}.yml", kill_at=point.n, delay=point.delay, everything=point.how == POWER)
    if point.how == POWER and killed.rc == -9:
        host.end_sessions()
    unsafe = unsafe_at_boot(host.seen())
    again = road.run(f"{mode}.yml")
    left = problems(host.seen(), mode)
    # 0: it ended before a kill inside its last module.
    in_time = killed.rc == -9
    hit = in_time and point.how != BOUNDARY and killed.events[-1]["event"] == "task"
    if not unsafe and not again.rc and not left and (in_time or (point.how != BOUNDARY and killed.rc == 0)):
        return {"wrong": "", "hit": hit}
    back = road.run(f"{mode}.yml")
    assert back.rc == 0, back.told()
    return {"wrong": wrong_words(killed, unsafe, left, again), "hit": hit}


def wrong_words(killed: Outcome, unsafe: str, left: list[str], again: Outcome) -> str:
    return f"rc {killed.rc}: {unsafe} {left}\n{again.told()[-1500:]}"
