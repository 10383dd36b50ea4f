"""How reality differs from the record, a line each, as a person would say it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import AerieError, ErrorKind
from .reality import Reality, unit_drift
from .reality import drift as process_drift
from .state import ACCEPTED, FAILED, SWITCHED, InstanceState

DRIFT = ErrorKind(
    "drift-found",
    "An instance is not as its record says: something was changed beside Aerie, or a run did not end. Each difference "
    "is named.",
)

# What the next deployment and the journal need; below it the server itself may fail to write its caches.
LOW_BYTES = 512 << 20
LOW_FILES = 10_000
SHOWN = 5


def of_run(
    spec: Mapping[str, Any], seen: Reality, record: InstanceState, accepted: Mapping[str, Any]
) -> list[str]:
    """Unit and process against the record. spec: resolved (see ``spec``); accepted: the record of its acceptance."""
    lines = [*process_drift(spec, seen), *unit_drift(spec, seen)]
    if seen.unit.load == "masked":
        lines.append("the unit is masked")
    elif seen.unit_text is None:
        lines.append("the unit file is gone")
    if record.phase == ACCEPTED:
        lines += _of_accepted(seen, record, accepted)
    elif seen.unit.running:
        lines.append(f"runs although its record says {record.phase}")
    return lines


def _of_accepted(seen: Reality, record: InstanceState, accepted: Mapping[str, Any]) -> list[str]:
    lines = []
    if not seen.unit.running:
        loop = " (in a restart loop)" if seen.unit.sub.startswith("auto-restart") else ""
        lines.append(f"accepted, but the unit is {seen.unit.active}{loop}")
    elif seen.running != record.accepted:
        lines.append(f"runs deployment {seen.running or 'unknown'}, accepted is {record.accepted}")
    else:
        lines += of_restart(seen, accepted)
    if seen.unit.file_state not in ("enabled", "masked"):
        lines.append(f"accepted, but {seen.unit.file_state or 'not enabled'} at boot")
    return lines


def passed_gates(seen: Reality, accepted: Mapping[str, Any]) -> bool:
    """Whether the very process that runs is the one that was accepted."""
    return seen.process is not None and seen.process.start_ticks == accepted.get("start_ticks")


def of_restart(seen: Reality, accepted: Mapping[str, Any]) -> list[str]:
    """Whether what runs is another process than the one that passed the gates."""
    if seen.process is None or not accepted.get("start_ticks") or passed_gates(seen, accepted):
        return []
    by_itself = f", {seen.unit.restarts} times by systemd" if seen.unit.restarts else ""
    return [f"restarted since its gates passed{by_itself}"]


def of_unfinished(record: InstanceState) -> list[str]:
    """A run that did not reach its end: for ``verify``; ``status`` shows the phase anyway."""
    if record.phase == FAILED:
        return [f"the last run failed: {(record.failure or 'no reason recorded').splitlines()[0]}"]
    return ["a run switched to it and did not gate it"] if record.phase == SWITCHED else []


def of_witness(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Driver, models and the deployment's own files: as accepted (``witness.take``) against as they are."""
    return [*of_driver(then, now), *of_models(then, now), *of_own(then, now)]


def of_driver(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The version of the NVIDIA driver in the kernel."""
    if not then or then.get("driver") == now.get("driver"):
        return []
    return [
        f"NVIDIA driver {then.get('driver') or 'none'} -> {now.get('driver') or 'none'} since its gates passed"
    ]


def of_models(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Files of the models but for config.json, whose hash is in the spec."""
    lines = []
    for role, files in sorted((then.get("models") or {}).items()):
        current = (now.get("models") or {}).get(role) or {}
        gone = [] if current else [f"{role} model is gone"]
        lines += gone or _of_files(f"{role} model", files, current, skip=("config.json",))
    return lines


def of_own(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Files of the deployment itself that the server reads, beside its source."""
    return _of_files("deployment", then.get("own") or {}, now.get("own") or {})


def _of_files(
    what: str, then: Mapping[str, Any], now: Mapping[str, Any], skip: Sequence[str] = ()
) -> list[str]:
    gone = [name for name in sorted(then) if name not in now and name not in skip]
    other = [
        name
        for name in sorted(then)
        if name in now and list(now[name]) != list(then[name]) and name not in skip
    ]
    lines = [f"{what}: {_shown(gone)} gone"] if gone else []
    return [*lines, f"{what}: {_shown(other)} replaced since its gates passed"] if other else lines


def of_sources(changed: Sequence[str]) -> list[str]:
    """Source files that are neither pristine nor patched by Aerie."""
    return [f"source files of the deployment: {_shown(changed)}"] if changed else []


def of_release(
    release: Mapping[str, Any], installed: Mapping[str, Any] | None, python_there: bool
) -> list[str]:
    """The environment that it runs from. installed: the record in its directory, None when there is none."""
    if not python_there:
        return [f"the python of release {release.get('release')} is gone: {release.get('python')}"]
    lock = (installed or {}).get("lock_sha256")
    if lock and release.get("lock_sha256") and lock != release["lock_sha256"]:
        return [f"release {release.get('release')} was installed anew from another lock"]
    return []


def of_disk(place: str, free: int, files: int) -> list[str]:
    """free: bytes; files: how many may still be made."""
    if free < LOW_BYTES:
        return [f"disk nearly full: {place} has {free >> 20} MiB free, {LOW_BYTES >> 20} are needed"]
    return [f"disk nearly full: {place} has room for {files} files"] if files < LOW_FILES else []


def of_port(port: int, strangers: Sequence[str]) -> list[str]:
    """Somebody else on the instance's port."""
    return [f"port {port} is held by {strangers[0]}"] if strangers else []


def _shown(names: Sequence[str]) -> str:
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def error_of(instances: Sequence[Mapping[str, Any]]) -> AerieError | None:
    """The error for instances that differ; None when none does."""
    evidence = [f"{one['instance']}: {line}" for one in instances for line in one["drift"]]
    if not evidence:
        return None
    names = sorted({one["instance"] for one in instances if one["drift"]})
    return DRIFT.error(
        f"{len(evidence)} difference{'' if len(evidence) == 1 else 's'} from the record: {', '.join(names)}",
        evidence=evidence,
        next="run the mode's playbook with --check --diff to see what it would put right, then without",
    )
