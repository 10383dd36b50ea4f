"""Processes by identity, so that a recycled pid is never taken for the one that is meant."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(stat: str) -> int:
    """Clock ticks since boot, field 22 of /proc/PID/stat. The command in field 2 may hold spaces and brackets."""
    return int(stat.rpartition(")")[2].split()[19])


@dataclass(frozen=True)
class Identity:
    """A process: its pid, when it started (clock ticks since boot), and the boot that this refers to."""

    pid: int
    start: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Identity:
        """Raises FileNotFoundError or ProcessLookupError when there is no such process."""
        return cls(pid, start_time(Path(f"/proc/{pid}/stat").read_text()), boot_id())

    @classmethod
    def own(cls) -> Identity:
        return cls.of(os.getpid())

    @classmethod
    def parse(cls, value: Any) -> Identity | None:
        try:
            return cls(int(value["pid"]), int(value["start"]), str(value["boot"]))
        except (TypeError, KeyError, ValueError):
            return None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def alive(self) -> bool:
        """True while this very process runs; a zombie counts as ended."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        state = stat.rpartition(")")[2].split()[0]
        return state not in "ZX" and start_time(stat) == self.start and boot_id() == self.boot

    def send(self, number: int) -> bool:
        """Signal this very process; False when it has ended. The pidfd closes the gap between look and kill."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive():
                return False
            signal.pidfd_send_signal(handle, number)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)

    def wait(self, seconds: float) -> bool:
        """True when the process has ended within the time."""
        deadline = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True
