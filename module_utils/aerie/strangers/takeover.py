"""Taking over a server that a person started: stop exactly its process tree, and keep the note to go back by.

One look at a time, like every wait of Aerie: :func:`look` notes the tree on the host before it sends anything, so a
run that dies in between is carried on with the same processes and the same clock.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import processes
from ..errors import ErrorKind
from ..files import read_json, write_json
from ..instance.state import SOAK_AFTER_KILL, InstanceStore, now
from . import stranger
from .process_tree import Member, descendants, living, read_member, read_table, send

TOO_LATE = ErrorKind(
    "takeover-not-ended",
    "Processes of a tree that was taken over still run after SIGKILL: they sit in the kernel, usually in the driver.",
)
SELF = ErrorKind(
    "takeover-of-ourselves", "The process named for a takeover is one that this very run hangs on."
)

# After the main process has ended there is nothing left to drain; its children get this long to follow.
ORPHANS_S = 20.0
# What SIGKILL takes at most, but for a process that sits in the driver.
KILLED_S = 60.0
KEPT = 5


def notes_path(store: InstanceStore) -> Path:
    return store.root / "before.json"


def notes(store: InstanceStore) -> list[dict[str, Any]]:
    """What ran before Aerie, newest first: :meth:`Stranger.note` with ``at``, ``members``, ``state``."""
    given = read_json(notes_path(store))
    return [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []


def said_notes(store: InstanceStore) -> list[str]:
    """A line each for ``status``: ``before Aerie (root, until 2026-11-29T…Z): cd … && nohup …``."""
    return [
        f"before Aerie ({one.get('user')}, until {one.get('ended') or 'it has drained'}): {stranger.note_line(one)}"
        for one in notes(store)
    ]


def under_way(store: InstanceStore) -> list[str]:
    """Tokens of takeovers that a run began and did not end."""
    return [
        f"{one['pid']}:{one['start_ticks']}"
        for one in notes(store)
        if not one.get("ended") and one.get("boot_id") == boot_id()
    ]


def boot_id() -> str:
    return (processes.PROC / "sys/kernel/random/boot_id").read_text().strip()


def clock() -> float:
    """Seconds since boot, sleep included: no person and no time server sets it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Takeover:
    """The takeover of one tree: the note on the host and the next thing to do about it."""

    def __init__(self, store: InstanceStore, token: str, port: int, bound: float) -> None:
        self.store = store
        self.pid, self.ticks = stranger.parse_token(token)
        self.port = port
        self.bound = bound
        self.note = next((one for one in notes(store) if self._is(one)), None)

    def _is(self, one: Mapping[str, Any]) -> bool:
        return (one.get("pid"), one.get("start_ticks")) == (self.pid, self.ticks)

    def foreseen(self) -> dict[str, Any]:
        """What :meth:`look` would begin with."""
        seen = read_member(self.pid)
        if self.note is None and (seen is None or seen.start_ticks != self.ticks):
            return _result(True, self._absent(seen))
        return _result(False, f"would drain and stop pid {self.pid} and the processes below it", acted=True)

    def look(self) -> dict[str, Any]:
        """Begin, go on or end. Returns ``done``, ``text``, ``acted``, ``killed``."""
        if self.note is not None and self.note.get("ended"):
            return _result(
                True, f"pid {self.pid} was taken over already", killed=bool(self.note.get("killed"))
            )
        if self.note is None:
            return self._begin()
        return self._go_on(self.note)

    def _absent(self, seen: Member | None) -> str:
        if seen is None:
            return f"pid {self.pid} is gone; nothing to take over"
        return f"pid {self.pid} has another start time ({seen.start_ticks}) than the one named; not touched"

    def _begin(self) -> dict[str, Any]:
        table = read_table()
        main = table.get(self.pid)
        if main is None or main.start_ticks != self.ticks or main.ended:
            return _result(True, self._absent(main if main and not main.ended else None))
        tree = descendants(table, self.pid)
        if any(one.pid == os.getpid() for one in tree):
            raise SELF.error(
                f"pid {self.pid} is a parent of this very run", next="name the server's own process instead"
            )
        found = stranger.read_named(table, self.pid)
        self.note = {
            **(found.note() if found else {"pid": self.pid, "start_ticks": self.ticks}),
            "boot_id": boot_id(),
            "at": now(),
            "asked_s": clock(),
            "members": [_kept(one) for one in tree],
        }
        self._save()
        self._terminate(tree)
        return _result(False, f"asked pid {self.pid} to drain and end", acted=True)

    def _terminate(self, tree: Sequence[Member]) -> None:
        """SIGTERM to the process that serves; a script above it first, so that it does not start it again."""
        serving = {pid for one in processes.listeners(self.port, [m.pid for m in tree]) for pid in one.pids}
        target = next((one for one in tree if one.pid in serving), tree[0])
        above = {one.pid: one for one in tree}
        chain = [target]
        while chain[0].pid != self.pid and chain[0].parent in above:
            chain.insert(0, above[chain[0].parent])
        for one in chain:
            send(one, signal.SIGTERM)

    def _go_on(self, note: dict[str, Any]) -> dict[str, Any]:
        if note.get("boot_id") != boot_id():
            return self._end(note, "the host was started anew since")
        known = [Member(**one) for one in note["members"]]
        alive = living(known)
        if not alive:
            return self._end(note, "all of it has ended")
        # What living members started meanwhile belongs to the tree too.
        table = read_table()
        grown = {one.token: one for root in alive for one in descendants(table, root.pid)}
        fresh = [one for token, one in grown.items() if token not in {each.token for each in known}]
        if fresh:
            note["members"] += [_kept(one) for one in fresh]
            self._save()
        waited = clock() - note["asked_s"]
        main_lives = any(one.pid == self.pid for one in alive)
        if not main_lives and "main_ended_s" not in note:
            note["main_ended_s"] = clock()
            self._save()
        late = waited > self.bound or (not main_lives and clock() - note["main_ended_s"] > ORPHANS_S)
        if late:
            return self._kill(note, [*alive, *fresh])
        open_now = processes.connections(self.port)
        count = f"{open_now} connection{'' if open_now == 1 else 's'} open"
        left = f"{len(alive)} process{'' if len(alive) == 1 else 'es'} left"
        return _result(False, f"pid {self.pid} drains: {count}, {left}")

    def _kill(self, note: dict[str, Any], alive: Sequence[Member]) -> dict[str, Any]:
        if clock() - note.setdefault("killed_s", clock()) > KILLED_S:
            raise TOO_LATE.error(
                f"{len(alive)} processes of pid {self.pid}'s tree still run {KILLED_S:.0f} s after SIGKILL",
                evidence=[f"pid {one.pid}, state {one.state}, {one.exe}" for one in alive][:10],
                next="dmesg; a process in state D waits for the driver, and a reboot may be all that helps",
            )
        note["killed"] = True
        self._save()
        for one in alive:
            send(one, signal.SIGKILL)
        return _result(
            False, f"pid {self.pid}: the bound has passed, sent SIGKILL to {len(alive)} processes", acted=True
        )

    def _end(self, note: dict[str, Any], how: str) -> dict[str, Any]:
        note["ended"] = now()
        self._save()
        killed = bool(note.get("killed"))
        if killed:
            state = self.store.load()
            state.soak = max(state.soak, SOAK_AFTER_KILL)
            self.store.save(state)
        return _result(True, f"pid {self.pid} taken over: {how}", acted=True, killed=killed)

    def _save(self) -> None:
        rest = [one for one in notes(self.store) if not self._is(one)]
        self.store.create()
        write_json(notes_path(self.store), [self.note, *rest][:KEPT], mode=0o600)


def _kept(one: Member) -> dict[str, Any]:
    return asdict(one)


def _result(done: bool, text: str, *, acted: bool = False, killed: bool = False) -> dict[str, Any]:
    return {"done": done, "text": text, "acted": acted, "killed": killed}
