"""Where a run can be killed: enumerated from the events of a recorded run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FIRST, LAST = "Take the lease", "Give the lease back"
BOUNDARY, INSIDE, POWER = "before", "inside", "everything, inside"
# When a kill inside a task comes, as a part of the time that the task took in the recorded run. The first part of a
# task is the way to the host. "everything" takes the controller's children, and what they run on the host, too.
PARTS = ((0.5, INSIDE), (0.8, POWER))


@dataclass(frozen=True)
class Point:
    """One place: number of the task start, seconds after it, how much is killed, and what a person calls it."""

    mode: str
    n: int
    delay: float
    how: str
    task: str

    @property
    def name(self) -> str:
        return f"{self.mode}: {self.how} {self.n} {self.task}"


def points_of(mode: str, events: Sequence[dict[str, Any]]) -> list[Point]:
    """The points of a recorded run to ``mode``, from taking the lease to the task after it was given back.

    A task that was skipped did nothing, so the boundary before it is the one before the next task.
    """
    tasks = {int(one["n"]): one for one in events if one["event"] == "task"}
    ends = {int(one["n"]): one for one in events if one["event"] == "ok"}
    skipped = {one["n"] for one in events if one["event"] == "skipped"}
    names = {n: str(one["name"]).rpartition(" : ")[2] for n, one in tasks.items()}
    first = min(n for n, name in names.items() if name == FIRST)
    last = max(n for n, name in names.items() if name == LAST)
    within = [n for n in sorted(names) if first <= n <= last + 1 and n not in skipped]
    found = [Point(mode, n, 0.0, BOUNDARY, names[n]) for n in within]
    for n in within:
        if n <= last and ends.get(n, {}).get("changed"):
            took = float(ends[n]["t"]) - float(tasks[n]["t"])
            found += [Point(mode, n, round(part * took, 2), how, names[n]) for part, how in PARTS]
    return found


def spread(points: Sequence[Point]) -> list[Point]:
    """In an order whose beginnings, wherever it is stopped, are spread over all of them."""
    return [points[i] for i in sorted(range(len(points)), key=lambda i: i * 0.6180339887 % 1)]


def told(points: Sequence[Point], done: dict[str, dict[str, Any]]) -> str:
    """How far it came and what it found, as the table says it."""
    made = [done[one.name] for one in points if one.name in done]
    good = sum(not one["wrong"] for one in made)
    kinds = Counter(one.how for one in points if one.name in done)
    hit = sum(bool(one.get("hit")) for one in made)
    rest = len(points) - len(made)
    text = (
        f"{good} of {len(made)} kills converge: {kinds[BOUNDARY]} at a boundary, {kinds[INSIDE]} of the controller"
        f" inside a module, {kinds[POWER]} there of everything that the run had on both sides"
        f" ({hit} of the latter two before the module had answered)"
    )
    return text + (f"; {rest} not run" if rest else "")
