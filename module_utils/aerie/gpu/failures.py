"""From an outcome that is not zero to the error that a person can act on: one kind a cause, every holder named."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import AerieError, ErrorKind
from .driver import gpus
from .holders import Holder, Identity, describe
from .nvml import lost_error
from .readings import HELD, LOST, UNKNOWN, Rule, Verdict, to_mib
from .wait import Outcome

HELD_BY_PROCESS = ErrorKind(
    "gpu-held", "Processes hold the GPU's memory. Aerie never ends a process that it did not start."
)
HELD_BY_NOBODY = ErrorKind(
    "gpu-held-no-process",
    "GPU memory is in use and no process is listed for it: usually a process of another pid namespace (a"
    " container), one that is still being torn down, or a context that was lost with its process.",
)
MEMORY_UNKNOWN = ErrorKind(
    "gpu-memory-unknown",
    "What the GPU holds cannot be read (unified memory, an old driver, no permission), so it cannot be proven"
    " free. Unknown is never taken for zero.",
)

Identify = Callable[[int], "Identity | None"]
Openers = Callable[[int], "list[int]"]


def holders_of(outcome: Outcome, identify: Identify) -> list[Holder]:
    """Every counted process of every GPU, with what ``/proc`` knows about it."""
    known: dict[int, Identity | None] = {}
    holders = []
    for verdict in outcome.verdicts:
        for process in verdict.counted:
            if process.pid not in known:
                known[process.pid] = identify(process.pid)
            holders.append(Holder(verdict.reading, process, known[process.pid]))
    return holders


def failure(
    outcome: Outcome, rule: Rule, holders: Sequence[Holder], identify: Identify, openers: Openers
) -> AerieError:
    """The error for an outcome that is not zero. The gravest cause gives the code; the evidence has all of them."""
    evidence = [line for verdict in outcome.busy for line in _lines(verdict, holders, identify, openers)]
    evidence.append(rule.said())
    states = {verdict.state for verdict in outcome.busy}
    if LOST in states:
        return lost_error(_labels(outcome, LOST), evidence)
    if UNKNOWN in states:
        return MEMORY_UNKNOWN.error(
            f"What {_labels(outcome, UNKNOWN)} holds is unknown, so it is not proven free",
            evidence=evidence,
            next=_next_for_unknown(outcome),
        )
    what = f"{len(outcome.busy)} of {gpus(len(outcome.verdicts))} still in use after {outcome.waited_s:.1f} s"
    if holders:
        return HELD_BY_PROCESS.error(what, evidence=evidence, next=_next_for_holder(holders))
    first = outcome.busy[0].reading
    device = f"/dev/nvidia{'*' if first.minor is None else first.minor}"
    return HELD_BY_NOBODY.error(
        what,
        evidence=evidence,
        next=f"on the host itself, outside any container, as root: fuser -v {device}. Stop what it shows. If it shows"
        f" nothing and the memory stays: nvidia-smi --gpu-reset -i {first.index} (nothing may use that GPU), or a"
        " reboot",
    )


def _lines(verdict: Verdict, holders: Sequence[Holder], identify: Identify, openers: Openers) -> list[str]:
    reading = verdict.reading
    head = f"{reading.label} ({reading.name or 'name unknown'}, {reading.uuid or 'UUID unknown'}): {verdict.state}"
    if reading.used is not None:
        head += f", {to_mib(reading.used)} MiB in use of {to_mib(reading.total)}"
    lines = [head]
    lines += [f"{reading.label}: {text}" for text in dict.fromkeys(p.text for p in reading.problems)]
    lines += [holder.said() for holder in holders if holder.gpu is reading]
    for process in verdict.ignored:
        size = "memory not attributed" if process.used is None else f"{to_mib(process.used)} MiB"
        lines.append(f"{reading.label}: pid {process.pid} (graphics), {size}: does not count")
    if verdict.state == HELD and not verdict.counted:
        lines += _without_process(verdict, identify, openers)
    return lines


def _without_process(verdict: Verdict, identify: Identify, openers: Openers) -> list[str]:
    reading = verdict.reading
    lines = [
        f"{reading.label}: {to_mib(verdict.leftover)} MiB without a visible process: a process in another pid"
        " namespace (a container), one being torn down, or a lost context"
    ]
    if reading.minor is None:
        return lines
    device = f"/dev/nvidia{reading.minor}"
    found = [who for who in map(identify, openers(reading.minor)) if who is not None]
    if not found:
        return [*lines, f"{reading.label}: no process that can be looked into from here has {device} open"]
    return lines + [f"{reading.label}: pid {who.pid} has {device} open, {describe(who)}" for who in found]


def _labels(outcome: Outcome, state: str) -> str:
    return ", ".join(verdict.reading.label for verdict in outcome.busy if verdict.state == state)


def _next_for_unknown(outcome: Outcome) -> str:
    text = " ".join(p.text for v in outcome.busy for p in v.reading.problems)
    if "version 2" in text:
        return "nvidia-smi --query-gpu=driver_version --format=csv; install driver R510 or later"
    if "Not Supported" in text:
        return (
            "nvidia-smi; a part that shares memory with the host (GB10, Jetson) does not report its own and cannot"
            " be proven free: do not use this check for it"
        )
    if "Permission" in text:
        return "run the task as root (become: true); for a MIG GPU name its instances in gpus"
    return "nvidia-smi; journalctl -k -g 'NVRM|Xid'"


def _next_for_holder(holders: Sequence[Holder]) -> str:
    seen = [holder.who for holder in holders if holder.who is not None]
    if not seen:
        pids = ",".join(dict.fromkeys(str(holder.process.pid) for holder in holders))
        return f"on the host itself, outside any container: ps -o pid,user,lstart,args -p {pids}"
    who = seen[0]
    if who.container:
        tool = {"docker": "docker inspect", "podman": "podman inspect"}.get(
            who.runtime or "", "crictl inspect"
        )
        look = f"{tool} {who.container[:12]}" if who.runtime not in ("lxc", "machine") else "machinectl list"
        return f"{look}; stop it if it may be stopped, then run again"
    if who.unit and who.unit.endswith(".service"):
        return f"systemctl status {who.unit}; systemctl stop {who.unit} if it may be stopped, then run again"
    pids = ",".join(dict.fromkeys(str(other.pid) for other in seen))
    return f"ps -o pid,user,lstart,args -p {pids}; end it if it may be ended, then run again"
