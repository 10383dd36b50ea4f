"""What an install has to do: wanted environments against what the host has. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .layout import TOOLS, Host, Layout, Record, Venv

BUILD = "build"
LINK = "link"
CLEAR = "clear"
PRUNE = "prune"
UNLINK = "unlink"


@dataclass(frozen=True)
class Wanted:
    """One environment that should be there and be linked. python_real: its interpreter, links resolved."""

    name: str
    lock_sha256: str
    python_real: str
    base_site_packages: str = ""


@dataclass(frozen=True)
class Action:
    """One step. ``path`` is what it makes or removes; ``name`` whose it is; ``why`` is for people."""

    kind: str
    name: str
    path: Path
    why: str

    def __str__(self) -> str:
        return f"{self.kind} {self.path}: {self.why}"


@dataclass(frozen=True)
class Plan:
    """The steps in order, and for each wanted name the environment that will be linked."""

    actions: tuple[Action, ...]
    goals: dict[str, Path]

    def builds(self, name: str) -> bool:
        return any(action.kind == BUILD and action.name == name for action in self.actions)


def plan(
    layout: Layout, wanted: Sequence[Wanted], host: Host, *, keep: int, unfit: frozenset[Path] = frozenset()
) -> Plan:
    """Decide the steps.

    keep: how many complete environments besides the wanted ones stay, newest first. What a deployment names
    stays whatever this number. unfit: complete environments that must not be used (tampered with).
    """
    actions = [
        Action(CLEAR, venv.name, venv.path, "left by an install that did not finish")
        for venv in host.venvs
        if venv.record is None
    ]
    goals: dict[str, Path] = {}
    for want in wanted:
        goals[want.name] = _reach(layout, want, host, unfit, actions)
    pruned = _prune(host, set(goals.values()), keep)
    actions += pruned
    gone = {action.path for action in pruned}
    actions += [
        Action(UNLINK, name, layout.link(name), "its release is no longer there")
        for name, target in sorted(host.links.items())
        if name not in goals and target in gone
    ]
    return Plan(tuple(actions), goals)


def fits(want: Wanted, record: Record) -> str:
    """Why an environment is not the wanted one; empty when it is."""
    if record.lock_sha256 != want.lock_sha256:
        return "the lock changed"
    if record.python_real != want.python_real:
        return f"the interpreter changed from {record.python_real} to {want.python_real}"
    if record.base_site_packages != want.base_site_packages:
        return "base_site_packages changed"
    return ""


def _reach(layout: Layout, want: Wanted, host: Host, unfit: frozenset[Path], actions: list[Action]) -> Path:
    """Append what it takes to have ``want`` linked; return the environment that will be."""
    usable = [
        venv
        for venv in host.venvs
        if venv.name == want.name and venv.record and not fits(want, venv.record) and venv.path not in unfit
    ]
    linked = host.links.get(want.name)
    for venv in usable:
        if venv.path == linked:
            return venv.path
    if usable:
        best = max(usable, key=lambda venv: venv.number)
        actions.append(Action(LINK, want.name, best.path, "complete already"))
        return best.path
    goal = layout.venv(want.name, want.lock_sha256, _next_number(layout, want, host))
    actions.append(Action(BUILD, want.name, goal, _why_build(want, host, linked, unfit)))
    actions.append(Action(LINK, want.name, goal, "once complete"))
    return goal


def _next_number(layout: Layout, want: Wanted, host: Host) -> int:
    start = layout.venv(want.name, want.lock_sha256, 0).name.removesuffix("0")
    return max((venv.number for venv in host.venvs if venv.path.name.startswith(start)), default=0) + 1


def _why_build(want: Wanted, host: Host, linked: Path | None, unfit: frozenset[Path]) -> str:
    current = next((venv.record for venv in host.venvs if venv.path == linked), None)
    if current is None:
        return "not installed"
    return "its files were changed" if linked in unfit else fits(want, current)


def _prune(host: Host, goals: set[Path], keep: int) -> list[Action]:
    """Old complete environments beyond ``keep``. Replaced tools count for nothing: no deployment runs from them."""
    if host.named is None:
        return []
    spare = [
        venv for venv in host.venvs if venv.record and venv.path not in goals and venv.path not in host.named
    ]
    tools = [
        venv
        for venv in spare
        if venv.name == TOOLS and any(goal.name.startswith(f"{TOOLS}-") for goal in goals)
    ]
    old = sorted((venv for venv in spare if venv.name != TOOLS), key=_age, reverse=True)
    return [
        Action(
            PRUNE, venv.name, venv.path, "replaced" if venv.name == TOOLS else "older than the ones to keep"
        )
        for venv in [*tools, *old[keep:]]
    ]


def _age(venv: Venv) -> int:
    return venv.record.completed_ns if venv.record else 0
