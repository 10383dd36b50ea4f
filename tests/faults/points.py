"""Where a run can be killed: enumerated from the events of a recorded run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# The first takes the lease, the last gives it back.
FIRST, LAST = (
    "Compare what is asked with what runs",
    "Check its sockets, admit connections, record it as accepted",
)
BOUNDARY, INSIDE, POWER = "before", "inside", "everything, inside"
# When a kill inside a task comes, as a part of the time that the task took in the recorded run. The first part of a
# task is the way to the host. "everything" takes the controller's children, and what they run on the host, too.
PARTS = ((0.5, INSIDE), (0.8, POWER))
LONGEST = 11  # kills in a row


@dataclass(frozen=True)
class Point:
    """One place: the mode that the run goes to, the task, seconds after its start, and how much is killed."""

    mode: str
    task: str
    delay: float
    how: str

    @property
    def name(self) -> str:
        return f"{self.mode}: {self.how} {self.task}"


def points_of(mode: str, events: Sequence[Mapping[str, Any]]) -> list[Point]:
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
    repeated = [name for name, times in Counter(names[n] for n in within).items() if times > 1]
    if repeated:
        raise ValueError(f"tasks of one name, so that a kill cannot be told where: {repeated}")
    found = [Point(mode, names[n], 0.0, BOUNDARY) for n in within]
    for n in within:
        # Taking the lease writes a file of the host, and is no change of it.
        if n <= last and (ends.get(n, {}).get("changed") or names[n] in (FIRST, LAST)):
            took = float(ends[n]["t"]) - float(tasks[n]["t"])
            found += [Point(mode, names[n], round(part * took, 2), how) for part, how in PARTS]
    return found


def chains_of(points: Sequence[Point]) -> list[list[Point]]:
    """The points in rows of one direction and one kind, in the order of the road: a run is killed at the first, the
    next run at the second, and so on. So every run but the last proves that the kill before it was survived so far."""
    rows = []
    for mode in dict.fromkeys(one.mode for one in points):
        for how in (BOUNDARY, INSIDE, POWER):
            same = [one for one in points if (one.mode, one.how) == (mode, how)]
            count = -(-len(same) // LONGEST)
            rows += [same[first::count] for first in range(count)]
    # Both directions in turn: each row begins with the other mode accepted, where the row before has ended.
    by_mode = [
        [row for row in rows if row[0].mode == mode] for mode in dict.fromkeys(row[0].mode for row in rows)
    ]
    longest = max(map(len, by_mode), default=0)
    return [row[n] for n in range(longest) for row in by_mode if n < len(row)]


def share_of(rows: Sequence[list[Point]], part: str) -> Sequence[list[Point]]:
    """``2/2``: the second half of the rows, when two hosts share them. What is done already does not move the rest."""
    number, of = map(int, part.split("/"))
    size = -(-len(rows) // of)
    return rows[(number - 1) * size : number * size]


def told(points: Sequence[Point], done: Mapping[str, Mapping[str, Any]]) -> str:
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
