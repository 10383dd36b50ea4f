"""Trees of processes: who descends from whom, and signals that reach exactly the process that was meant.

A process is its pid and its start time in clock ticks since boot; a pid alone may have another owner a moment later.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..processes import PROC


@dataclass(frozen=True)
class Member:
    """One process of a tree. ``group``: its process group. ``exe``: the program it runs, '' when not readable."""

    pid: int
    start_ticks: int
    parent: int
    group: int
    state: str = "S"
    exe: str = ""

    @property
    def token(self) -> str:
        """``4711:81234567``: pid and start time, as a person passes them on."""
        return f"{self.pid}:{self.start_ticks}"

    @property
    def ended(self) -> bool:
        """A zombie has ended; only its parent has not asked yet."""
        return self.state in ("Z", "X")


def parse_stat(text: str) -> Member | None:
    """Read ``/proc/<pid>/stat``; the command in brackets may hold anything, so the fields are counted behind it."""
    pid, _, rest = text.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    if not pid.strip().isdigit() or len(fields) < 20:
        return None
    return Member(int(pid), int(fields[19]), int(fields[1]), int(fields[2]), fields[0])


def read_member(pid: int, proc: Path = PROC) -> Member | None:
    """The process, or None when there is no such pid."""
    try:
        found = parse_stat((proc / str(pid) / "stat").read_text(errors="replace"))
    except OSError:
        return None
    exe = ""
    with suppress(OSError):
        exe = str((proc / str(pid) / "exe").readlink())
    return Member(**{**vars(found), "exe": exe}) if found else None


def read_table(proc: Path = PROC) -> dict[int, Member]:
    """Every process by pid."""
    found = (read_member(int(one.name), proc) for one in proc.iterdir() if one.name.isdigit())
    return {one.pid: one for one in found if one}


def descendants(table: Mapping[int, Member], pid: int) -> list[Member]:
    """The process and everything below it, parents before children."""
    children: dict[int, list[Member]] = {}
    for one in table.values():
        children.setdefault(one.parent, []).append(one)
    tree = [table[pid]] if pid in table else []
    for one in tree:
        # A child that is older than its parent has a parent's pid that was used before.
        tree += [child for child in children.get(one.pid, []) if child.start_ticks >= one.start_ticks]
    return tree


def top_of(table: Mapping[int, Member], pid: int) -> Member | None:
    """The process to which ``pid`` belongs as a person started it.

    Upwards while the parent is of the same process group and runs the same program: from a scheduler to its launcher,
    but not to the shell or script around it.
    """
    one = table.get(pid)
    while one is not None:
        parent = table.get(one.parent)
        if parent is None or parent.pid <= 1 or parent.group != one.group or parent.exe != one.exe:
            return one
        one = parent
    return None


def starter_of(table: Mapping[int, Member], one: Member) -> Member | None:
    """A parent of the same process group: a script that may start the process again."""
    parent = table.get(one.parent)
    return parent if parent and parent.pid > 1 and parent.group == one.group else None


def living(members: Iterable[Member]) -> list[Member]:
    """Those that still run."""
    now = ((one, read_member(one.pid)) for one in members)
    return [one for one, seen in now if seen and seen.start_ticks == one.start_ticks and not seen.ended]


def send(one: Member, number: signal.Signals) -> bool:
    """Send a signal to this very process; False when it is gone. A pid that was given anew is never hit."""
    try:
        handle = os.pidfd_open(one.pid)
    except ProcessLookupError:
        return False
    try:
        # The handle holds on to whoever has the pid now; the start time says whether that is who was meant.
        seen = read_member(one.pid)
        if seen is None or seen.start_ticks != one.start_ticks or seen.ended:
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
