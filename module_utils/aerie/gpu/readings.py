"""What NVML said about a GPU at one moment, and what follows from it: free, held, unknown or lost.

Three rules, in this order:

1. What cannot be read is unknown, and unknown is never zero.
2. A compute process counts, whatever memory it shows; a graphics process only when told so; one of a neighbour, an
   instance that a person has put on the same card, never.
3. Memory without a counted process counts above the tolerance. The driver's reserve is not use: memory info
   version 2 keeps it apart (on an idle H200, driver 580.159, version 1 says 615 MiB used, version 2 says 0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

MIB = 1 << 20

FREE = "free"
HELD = "held"
UNKNOWN = "unknown"
LOST = "lost"

COMPUTE = "compute"
GRAPHICS = "graphics"
MPS = "mps"
NEIGHBOUR = "neighbour"


@dataclass(frozen=True)
class GpuProcess:
    """One entry of NVML's process lists. ``used``: bytes, or None where the driver does not attribute memory."""

    pid: int
    kind: str
    used: int | None


@dataclass(frozen=True)
class Problem:
    """Something that could not be read. ``permanent``: waiting cannot change it. ``lost``: the GPU is gone."""

    text: str
    permanent: bool = False
    lost: bool = False


@dataclass(frozen=True)
class GpuReading:
    """One GPU, or one MIG instance (``mig_index`` set), read at one moment. Memory in bytes, by memory info v2.

    ``minor``: the number in ``/dev/nvidia<minor>``, which is not always the index.
    """

    index: int
    uuid: str
    name: str
    mig_index: int | None = None
    minor: int | None = None
    total: int | None = None
    reserved: int | None = None
    used: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def label(self) -> str:
        mig = "" if self.mig_index is None else f" MIG {self.mig_index}"
        return f"GPU {self.index}{mig}"


@dataclass(frozen=True)
class Rule:
    """What counts as use. ``tolerance_mib`` forgives only memory that no counted process holds."""

    tolerance_mib: int = 0
    graphics: bool = False

    def said(self) -> str:
        graphics = "count" if self.graphics else "do not count"
        return (
            f"tolerance {self.tolerance_mib} MiB (for memory without a process only), graphics processes"
            f" {graphics}, the driver's reserve is not use"
        )


@dataclass(frozen=True)
class Verdict:
    """What a reading means under a rule.

    ``counted``: processes that hold the GPU. ``ignored``: graphics processes and neighbours, which do not count.
    ``leftover``: bytes in use that no listed process explains; None when the memory is unknown.
    """

    reading: GpuReading
    state: str
    counted: tuple[GpuProcess, ...]
    ignored: tuple[GpuProcess, ...]
    leftover: int | None

    @property
    def final(self) -> bool:
        """Waiting longer cannot help."""
        return any(problem.permanent or problem.lost for problem in self.reading.problems)

    def as_result(self) -> dict[str, Any]:
        reading = self.reading
        return {
            "index": reading.index,
            "mig_index": reading.mig_index,
            "uuid": reading.uuid,
            "name": reading.name,
            "state": self.state,
            "total_mib": to_mib(reading.total),
            "used_mib": to_mib(reading.used),
            "reserved_mib": to_mib(reading.reserved),
            "without_process_mib": to_mib(self.leftover),
            "processes": len(self.counted),
            "problems": [problem.text for problem in reading.problems],
        }


def with_neighbours(reading: GpuReading, is_neighbour: Callable[[int], bool]) -> GpuReading:
    """The reading with the kind of those processes set to NEIGHBOUR whose pid ``is_neighbour`` knows."""
    processes = tuple(
        replace(process, kind=NEIGHBOUR) if is_neighbour(process.pid) else process
        for process in reading.processes
    )
    return replace(reading, processes=processes)


def to_mib(size: int | None) -> int | None:
    """Bytes to MiB, rounded up: one byte in use is not 0 MiB."""
    return None if size is None else -(-size // MIB)


def judge(reading: GpuReading, rule: Rule) -> Verdict:
    """Say what a reading means under ``rule``; see the module's rules."""
    merged = _by_pid(reading.processes)
    passed_over = {NEIGHBOUR} if rule.graphics else {NEIGHBOUR, GRAPHICS}
    counted = tuple(p for p in merged if p.kind not in passed_over)
    ignored = tuple(p for p in merged if p.kind in passed_over)
    leftover = None
    if reading.used is not None:
        leftover = max(0, reading.used - sum(process.used or 0 for process in merged))
    return Verdict(reading, _state(reading, rule, counted, leftover), counted, ignored, leftover)


def _state(reading: GpuReading, rule: Rule, counted: tuple[GpuProcess, ...], leftover: int | None) -> str:
    if any(problem.lost for problem in reading.problems):
        return LOST
    if reading.problems or leftover is None:
        return UNKNOWN
    if counted or leftover > rule.tolerance_mib * MIB:
        return HELD
    return FREE


def _by_pid(processes: tuple[GpuProcess, ...]) -> list[GpuProcess]:
    """One entry a process: one that draws and computes is in both lists, and then it computes."""
    merged: dict[int, GpuProcess] = {}
    for process in processes:
        other = merged.get(process.pid)
        if other is None:
            merged[process.pid] = process
            continue
        kind = other.kind if other.kind != GRAPHICS else process.kind
        known = [used for used in (other.used, process.used) if used is not None]
        merged[process.pid] = GpuProcess(process.pid, kind, max(known) if known else None)
    return list(merged.values())
