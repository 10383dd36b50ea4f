"""What has to be done to make an instance what its spec says. Pure: no host is touched here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .difference import differences, layer_id_changes
from .drift import of_sources, passed_gates
from .needed import Plan
from .reality import Reality, drift, unit_drift
from .spec import resolved
from .state import ACCEPTED, InstanceState


def make_plan(
    digest: str,
    desired: Mapping[str, Any],
    recorded: Mapping[str, Any] | None,
    state: InstanceState,
    seen: Reality,
    *,
    built: bool,
    deployment: str,
    start_timeout: float,
    edited: Sequence[str] = (),
) -> Plan:
    """Compare the desired spec with the record and with what runs.

    recorded: the spec of the deployment that the live process was started from (or that is current), None on a host
    that has none. deployment: path of the desired deployment. start_timeout: seconds that a
    young process may still take to load before it counts as hung. edited: source files of the desired deployment that
    somebody changed; it is built anew then, and what runs from it is replaced.
    """
    plan = Plan(digest, build=not built or bool(edited))
    if edited:
        plan.restart = True
        plan.reasons += of_sources(edited)
    running = seen.unit.running
    if not running:
        plan.restart = True
        why = {"failed": "the unit has failed", "activating": "the unit is in a restart loop"}
        plan.reasons.append(why.get(seen.unit.active, "not running"))
    if recorded is None:
        plan.reasons.append(
            "first deployment of this instance" if not running else "the running server is not in the record"
        )
        plan.reasons += layer_id_changes({}, desired)
        plan.restart = True
    elif (digest and seen.running == digest) or not running:
        if running:
            _compare_running(plan, recorded, desired, seen, deployment)
        else:
            plan.reasons += differences(recorded, desired)
    else:
        plan.reasons += differences(recorded, desired) or [
            f"deployment {seen.running or 'unknown'} -> {digest or 'another'}"
        ]
        plan.restart = True
    if running and not plan.restart and seen.health != "ok":
        young = seen.age_s < start_timeout and seen.health in ("not listening yet", "HTTP 503")
        plan.gates = True
        # One that was accepted has loaded: what it does not answer now is a fault.
        accepted = state.history[0] if state.phase == ACCEPTED and state.history else {}
        if young and not passed_gates(seen, accepted) and not seen.unit.restarts:
            plan.reasons.append(f"still loading after {seen.age_s:.0f} s; it is waited for")
        else:
            # One that systemd started again is started anew: its next end could not be told from the last one.
            plan.restart = True
            again = f", systemd has restarted it {seen.unit.restarts} times" if seen.unit.restarts else ""
            plan.reasons.append(f"/health does not answer: {seen.health}{again}")
    if state.accepted != digest or state.phase != ACCEPTED:
        plan.gates = True
        if not plan.restart:
            plan.reasons.append("runs as asked, but its gates have not passed yet")
    plan.gates = plan.gates or plan.restart
    plan.unit = plan.unit and not plan.restart
    if not plan.gates and seen.unit.file_state != "enabled":
        plan.enable = True
        plan.reasons.append("not enabled at boot though accepted")
    return plan


def _compare_running(
    plan: Plan, recorded: Mapping[str, Any], desired: Mapping[str, Any], seen: Reality, deployment: str
) -> None:
    """A server that runs from the desired deployment: by equal digests the record differs in nothing but what systemd
    takes in without a restart."""
    wanted = resolved(desired, deployment)
    found = drift(wanted, seen)
    light = differences(recorded, desired) or unit_drift(wanted, seen)
    plan.reasons += [*light, *found]
    plan.restart = plan.restart or bool(found)
    plan.unit = bool(light) and not plan.restart


def measure_again(plan: Plan, restarted: Sequence[str], more: Sequence[str], seen: Reality) -> None:
    """A server that runs as accepted is measured while it serves, where its acceptance does not answer for it.

    restarted: that it is another process than the one that passed the gates. more: what the gates are asked today.
    """
    plan.reasons += [*restarted, *more]
    plan.gates = plan.measure_again = bool(restarted or more)
    plan.recount = bool(restarted) and seen.unit.restarts > 0
    plan.unit = plan.unit or plan.recount


LINE = 160  # characters that a plan may have to be said in one line


def summary(plan: Plan, seen: Reality) -> list[str]:
    """The plan as a person reads it.

    First what differs and whether the server restarts (``mode debug -> production; CUDA graphs on; restart needed``, a
    line each when it is much), then the steps in their order.
    """
    if not plan.changed:
        pid = seen.process.pid if seen.process else "?"
        return [
            f"nothing to do: {seen.unit.name} runs deployment {plan.digest} as asked "
            f"(pid {pid}, up {duration(seen.age_s)}); not restarted"
        ]
    steps = {
        "build": plan.build,
        "takeover": bool(plan.takeover),
        "drain and stop": plan.restart and seen.unit.running,
        "start": plan.restart,
        "write the unit": plan.unit and not plan.recount,
        "count restarts anew": plan.recount,
        "gates": plan.gates,
        "enable at boot": plan.enable,
        "close ports": plan.traffic,
    }
    verb = "restart" if seen.unit.running else "start"
    need = f"{verb} needed" if plan.restart else "no restart needed"
    whole = "; ".join([*plan.reasons, need])
    lines = [whole] if len(whole) <= LINE else [*plan.reasons, need]
    return [*lines, f"steps: {', '.join(name for name, needed in steps.items() if needed)}"]


def duration(seconds: float) -> str:
    """``3 d 04:05`` or ``04:05:06``."""
    whole = int(seconds)
    days, rest = divmod(whole, 86400)
    hours, minutes, left = rest // 3600, rest % 3600 // 60, rest % 60
    return f"{days} d {hours:02}:{minutes:02}" if days else f"{hours:02}:{minutes:02}:{left:02}"
