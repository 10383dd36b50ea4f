"""What Aerie itself costs, against the same thing without it: `make bench`. Interleaved, medians, JSON.

    second run     production.yml that changes nothing, against a playbook with `gather_facts: false` and one `ping`
    three hosts    the same on three hosts, against one
    start          from systemd's start of the server to its acceptance, against the same server started by hand to its
                   first 200 from /health, plus the time of the gates' own requests
    downtime       how long a change of the idle server keeps /health from answering, against the by-hand way
    demo           what `make demo` took beside image build, pip, model making and SGLang's start (its own report)

The hosts are test hosts of this checkout with the CPU engine (`make clean` removes them). In each round both sides run
right after each other, so what else the machine does hits both alike: quote the ratio, not the seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import downtime as outage
import world

HERE = Path(__file__).resolve().parent
REPORTS = world.ROOT / "reports" / "bench"
ONE, ALL = world.HOSTS[:1], world.HOSTS
Samples = dict[str, list[float]]


def second_run(rounds: int) -> Samples:
    """Seconds of the smallest playbook and of a run that changes nothing, on one host."""
    found: Samples = {"ping": [], "second run": []}
    world.play(world.PING, ONE)  # opens the connection, which both then use
    for number in range(1, rounds + 1):
        found["ping"].append(world.play(world.PING, ONE))
        found["second run"].append(world.play("production.yml", ONE, unchanged=True))
        tell("second run", number, found)
    return found


def three_hosts(rounds: int) -> Samples:
    """Seconds of a run that changes nothing, on one host and on three."""
    found: Samples = {"one host": [], "three hosts": []}
    world.play(world.PING, ALL)
    for number in range(1, rounds + 1):
        found["one host"].append(world.play("production.yml", ONE, unchanged=True))
        found["three hosts"].append(world.play("production.yml", ALL, unchanged=True))
        tell("three hosts", number, found)
    return found


def start(rounds: int) -> Samples:
    """Seconds of a start by hand with the gates' requests, and of one by the road."""
    found: Samples = {"by hand": [], "requests": [], "by hand and requests": [], "start to accepted": []}
    host = ONE[0]
    for number in range(1, rounds + 1):
        world.play("playbooks/stop.yml", ONE)
        found["by hand"].append(world.on_host(host, HERE / "on_host.py", "by-hand", "default")["seconds"])
        world.play("production.yml", ONE)
        road = world.on_host(host, HERE / "on_host.py", "road", "default")
        if road["phase"] != "accepted":
            sys.exit(f"bench: the instance on {host} is {road['phase']}, not accepted")
        found["requests"].append(road["requests"])
        found["by hand and requests"].append(found["by hand"][-1] + road["requests"])
        found["start to accepted"].append(road["seconds"])
        tell("start", number, found)
    return found


def downtime(rounds: int) -> Samples:
    """Seconds without an answer, by hand and by the road."""
    return outage.measure(ONE[0], rounds)


def demo(rounds: int) -> Samples:
    """Seconds that the demo's last run took beside what it cannot help; read from its own report."""
    report = world.ROOT / "reports" / "demo.json"
    if not report.is_file():
        return {"overhead": [], "all": []}
    told = json.loads(report.read_text())
    return {"overhead": [told["overhead"]], "all": [told["seconds"]]}


# name: (how it is measured, numerator, denominator or '' for seconds, goal)
MEASURES: dict[str, tuple[Callable[[int], Samples], str, str, float]] = {
    "second run": (second_run, "second run", "ping", 4.0),
    "three hosts": (three_hosts, "three hosts", "one host", 1.5),
    "start": (start, "start to accepted", "by hand and requests", 1.05),
    "downtime": (downtime, "road", "by hand", 1.10),
    "demo": (demo, "overhead", "", 20.0),
}


def tell(name: str, number: int, found: Samples) -> None:
    """One line a round."""
    print(
        f"{name}, round {number}: " + ", ".join(f"{key} {one[-1]:.2f} s" for key, one in found.items() if one)
    )
    sys.stdout.flush()


def judged(name: str, found: Samples) -> dict[str, Any]:
    """Medians and their ratio. The median of the rounds' own ratios is told beside it."""
    _, top, bottom, goal = MEASURES[name]
    medians = {key: round(statistics.median(values), 3) for key, values in found.items() if values}
    if not found[top]:
        return {"goal": goal, "value": None, "why": "no report yet: make demo"}
    value = medians[top] / medians[bottom] if bottom else medians[top]
    result = {
        "goal": goal,
        "unit": "times" if bottom else "s",
        "value": round(value, 3),
        "met": value <= goal,
        "medians": medians,
        "seconds": {key: [round(one, 3) for one in values] for key, values in found.items()},
    }
    if bottom:
        pairs = zip(found[top], found[bottom], strict=True)
        result["median_of_ratios"] = round(statistics.median(one / other for one, other in pairs), 3)
    return result


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": [round(one, 2) for one in os.getloadavg()],
    }


def line(name: str, result: dict[str, Any]) -> str:
    """One measure as a person reads it."""
    if result["value"] is None:
        return f"  {name:<12} not measured ({result['why']})"
    shown = ", ".join(f"{key} {value:.2f} s" for key, value in result["medians"].items())
    goal = f"{result['goal']:g} {result['unit']}, {'met' if result['met'] else 'NOT met'}"
    return f"  {name:<12} {result['value']:.2f} {result['unit']} (goal {goal}; medians: {shown})"


def main() -> None:
    arguments = argparse.ArgumentParser(prog="make bench", description="What Aerie itself costs.")
    arguments.add_argument("--only", action="append", choices=list(MEASURES), help="measure this; repeatable")
    arguments.add_argument("--rounds", type=int, default=7, help="rounds of the runs that change nothing (7)")
    arguments.add_argument("--starts", type=int, default=3, help="rounds of the start (3)")
    arguments.add_argument("--outages", type=int, default=5, help="pairs of the downtime (5)")
    arguments.add_argument("--keep", action="store_true", help="leave the hosts as they are at the end")
    given = arguments.parse_args()
    names = given.only or list(MEASURES)
    if set(names) - {"demo"}:
        world.prepare(len(ALL) if "three hosts" in names else 1)
    report: dict[str, Any] = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": machine()}
    results = {}
    for name in names:
        rounds = {"start": given.starts, "downtime": given.outages}.get(name, given.rounds)
        results[name] = judged(name, MEASURES[name][0](rounds))
    report |= {"load_after": [round(one, 2) for one in os.getloadavg()], "measures": results}
    REPORTS.mkdir(parents=True, exist_ok=True)
    (REPORTS / "bench.json").write_text(json.dumps(report, indent=1) + "\n")
    if not given.keep and set(names) - {"demo"}:
        world.clean()
    print(
        "\n".join(
            [
                "",
                *(line(name, result) for name, result in results.items()),
                "all of it: reports/bench/bench.json",
            ]
        )
    )


if __name__ == "__main__":
    main()
