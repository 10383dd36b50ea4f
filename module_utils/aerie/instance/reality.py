"""What an instance really is at this moment: its unit, process, listener and health, read without changing anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import health, processes, systemd
from ..files import read_text
from ..processes import Listener, Process
from ..systemd import UnitState
from .state import InstanceStore
from .unit_lines import essential


@dataclass(frozen=True)
class Reality:
    """A look at one instance. ``running`` is the digest that the live process was started from ('' if none)."""

    unit: UnitState
    unit_text: str | None
    process: Process | None
    environment: dict[str, str] | None
    running: str
    listener: tuple[Listener, ...]
    members: tuple[int, ...]
    health: str  # "ok", "starting", or what is wrong
    age_s: float

    @property
    def owns_port(self) -> bool:
        """A process of the unit's own cgroup holds the listener."""
        return any(set(one.pids) & set(self.members) for one in self.listener)

    @property
    def strangers(self) -> list[int]:
        """Pids outside the unit that hold the port; [0] when the holder cannot be seen."""
        if not self.listener or self.owns_port:
            return []
        return sorted({pid for one in self.listener for pid in one.pids}) or [0]


class Look:
    """A look at one instance whose /health has been asked and not yet answered.

    ``seen`` is complete but for its health, on which no decision may rest; :meth:`finish` waits for the answer.
    """

    def __init__(self, seen: Reality, request: health.Request | None) -> None:
        self.seen = seen
        self._request = request

    def finish(self) -> Reality:
        """The whole look."""
        if self._request is not None:
            answer = self._request.answer()
            self.seen = replace(self.seen, health="ok" if answer.ok else answer.describe())
            self._request = None
        return self.seen


def look(
    store: InstanceStore, host: str, port: int, *, ask_health: bool = True, timeout: float = 15.0
) -> Reality:
    """Look at an instance. At most one HTTP request, and only when our own process holds the port."""
    return begin_look(store, host, port, ask_health=ask_health, timeout=timeout).finish()


def begin_look(
    store: InstanceStore, host: str, port: int, *, ask_health: bool = True, timeout: float = 15.0
) -> Look:
    """The same, for a caller with something to do while the server answers (SGLang takes a second)."""
    unit = systemd.show(store.unit_name)
    process = processes.read_process(unit.main_pid) if unit.main_pid else None
    environment = processes.read_environment(unit.main_pid) if process else None
    members = tuple(processes.pids_in_cgroup(unit.cgroup)) if unit.cgroup else ()
    listener = tuple(processes.listeners(port))
    seen = Reality(
        unit=unit,
        unit_text=read_text(store.unit_path),
        process=process,
        environment=environment,
        running=running_digest(environment, store.deployments),
        listener=listener,
        members=members,
        health="no process",
        age_s=processes.seconds_since_start(process) if process else 0.0,
    )
    if process is None:
        return Look(seen, None)
    if not seen.owns_port:
        return Look(replace(seen, health="not listening yet"), None)
    if not ask_health:
        return Look(replace(seen, health="not asked"), None)
    return Look(seen, health.Request(host, port, "/health", timeout=timeout))


def running_digest(environment: Mapping[str, str] | None, deployments: Path) -> str:
    """The deployment that a process imports from: the first entry of its PYTHONPATH names it."""
    first = (environment or {}).get("PYTHONPATH", "").partition(":")[0]
    site = Path(first)
    return site.parent.name if first and site.parent.parent == deployments else ""


def drift(spec: Mapping[str, Any], seen: Reality) -> list[str]:
    """How the live process and unit differ from the record they were made from, a line each."""
    lines: list[str] = []
    if seen.unit_text is not None and essential(seen.unit_text) != essential(str(spec.get("unit") or "")):
        lines.append(f"unit file {seen.unit.fragment or seen.unit.name} was edited")
    if seen.unit.drop_ins:
        lines.append(f"unit has drop-ins: {', '.join(seen.unit.drop_ins)}")
    if seen.process is None:
        return lines
    if seen.process.command != list(spec.get("command") or []):
        lines.append(f"process {seen.process.pid} runs with other arguments than recorded")
    for name, value in sorted((spec.get("environment") or {}).items()):
        if seen.environment is not None and name not in seen.environment:
            lines.append(f"process {seen.process.pid} lacks the variable {name}")
        elif seen.environment is not None and seen.environment[name] != value:
            lines.append(f"process {seen.process.pid} has another value of {name} than recorded")
    return lines


def unit_drift(spec: Mapping[str, Any], seen: Reality) -> list[str]:
    """How the unit differs in what its running server is not touched by, a line each (see ``unit_lines``)."""
    name = seen.unit.fragment or seen.unit.name
    if seen.unit_text is None:
        return []
    if seen.unit_text != spec.get("unit"):
        same = essential(seen.unit_text) == essential(str(spec.get("unit") or ""))
        return [f"unit file {name} differs in lines that need no restart"] if same else []
    return [f"systemd has not read the unit file {name} as it is now"] if seen.unit.needs_reload else []
