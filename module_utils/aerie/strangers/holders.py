"""What holds an instance's port or GPUs and is not its own: found, named, and refused unless a person took it over."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import ErrorKind
from ..gpu import check as gpu_check
from ..gpu.readings import MIB, Verdict, to_mib
from ..processes import Listener
from . import stranger
from .process_tree import Member, read_table
from .stranger import Stranger

PORT_TAKEN = ErrorKind(
    "port-taken",
    "Another process listens on the instance's port. SGLang would load the whole model first and then hang, or take "
    "the other process's answers for its own. A server that was started by hand is never stopped unasked: "
    "sglang_server_takeover names the one that may be.",
)
GPUS_TAKEN = ErrorKind(
    "gpus-taken",
    "Processes that are not the instance's hold its GPUs, so a new server could not start there. They are never "
    "stopped unasked: sglang_server_takeover names a server that was started by hand and may be stopped.",
)

# A process that has just ended is listed by the driver without being visible; a second look tells.
LOOK_AGAIN_S = 2.0
# Far above what a server's own contexts leave unattributed.
UNATTRIBUTED_MIB = 256


def on_ports(listeners: Sequence[Listener], members: Sequence[int]) -> list[tuple[int, str]]:
    """``(pid, what it holds)`` of listeners that no process of the unit holds; pid 0 when it cannot be seen."""
    foreign = [one for one in listeners if not set(one.pids) & set(members)]
    return [(pid, f"port {one.port} ({one})") for one in foreign for pid in one.pids or (0,)]


def on_gpus(look: Mapping[str, Any], members: Sequence[int]) -> list[tuple[int, str]]:
    """The same for GPUs, from the driver; nothing where pynvml is not installed yet.

    look: ``gpus`` (indices or UUIDs, none for all), ``expected_count``, ``tools_dir``, ``neighbours``. A holder that
    ``/proc`` does not show is named as pid 0 when it is still listed after two seconds.
    """
    options = gpu_check.Options(
        tuple(str(one) for one in look.get("gpus") or ()) or None,
        look.get("expected_count"),
        tools_dir=str(look.get("tools_dir") or ""),
        neighbours=tuple(look.get("neighbours") or ()),
    )
    found = _gpu_holders(options, members)
    if any(pid == 0 for pid, _ in found):
        time.sleep(LOOK_AGAIN_S)
        found = _gpu_holders(options, members)
    return found


def _gpu_holders(options: gpu_check.Options, members: Sequence[int]) -> list[tuple[int, str]]:
    report = gpu_check.check(options, once=True, clock=time.monotonic, sleep=time.sleep)
    foreign = [one for one in report.holders if one.process.pid not in members]
    found = [(one.process.pid if one.who else 0, one.said().partition(", user ")[0]) for one in foreign]
    return found + [(0, text) for text in map(_nobodys, report.outcome.verdicts) if text]


def _nobodys(verdict: Verdict) -> str:
    """Memory beside a server's that no process explains: somebody outside the host's pid namespace holds it, and the
    card would not be free when the server has gone. Nothing is said of a card without a process, which is not the
    plan's matter, nor where the driver does not attribute memory (seen: 10 MiB unattributed for one server)."""
    processes = [*verdict.counted, *verdict.ignored]
    if not processes or verdict.leftover is None or any(one.used is None for one in processes):
        return ""
    if verdict.leftover <= UNATTRIBUTED_MIB * MIB * len(processes):
        return ""
    return f"{verdict.reading.label}: {to_mib(verdict.leftover)} MiB without a visible process"


def gather(found: Sequence[tuple[int, str]], table: Mapping[int, Member] | None = None) -> list[Stranger]:
    """One stranger per process tree, with all that it holds. Holders that cannot be seen are left out."""
    table = read_table() if table is None else table
    trees: dict[str, Stranger] = {}
    for pid, holds in found:
        one = stranger.read(table, pid, holds) if pid else None
        if one is None:
            continue
        known = trees.get(one.token)
        trees[one.token] = replace(known, holds=tuple({*known.holds, holds})) if known else one
    return sorted(trees.values(), key=lambda one: one.main.pid)


def lines(listeners: Sequence[Listener], members: Sequence[int]) -> list[str]:
    """Who holds the port without being of the unit, as evidence."""
    found = on_ports(listeners, members)
    return [line for one in gather(found) for line in one.evidence()] if found else []


def approve_ports(found: Sequence[tuple[int, str]], allowed: Sequence[str]) -> list[Stranger]:
    """The holders of our ports, all of them allowed to be taken over. Raises port-taken.

    allowed: tokens (pid:start time).
    """
    strangers, evidence, ways = _judge(found, allowed)
    if evidence:
        shown = ", ".join(dict.fromkeys(holds.partition(" (")[0] for _, holds in found))
        ways = ways or ["on the machine itself, outside any container, as root: fuser -v /dev/nvidia*"]
        other = "or give the instance another sglang_server_port or sglang_server_rendezvous_port"
        raise PORT_TAKEN.error(
            f"{shown} is held by another process", evidence=evidence, next="; ".join([*ways, other])
        )
    return strangers


def approve_gpus(found: Sequence[tuple[int, str]], allowed: Sequence[str]) -> list[Stranger]:
    """The same of our GPUs. Raises gpus-taken."""
    strangers, evidence, ways = _judge(found, allowed)
    if evidence:
        ways = ways or ["on the machine itself, outside any container, as root: fuser -v /dev/nvidia*"]
        other = "or give the instance other GPUs (sglang_server_gpus)"
        raise GPUS_TAKEN.error(
            "the instance's GPUs are held by processes that are not its own",
            evidence=evidence,
            next="; ".join([*ways, other]),
        )
    return strangers


def _judge(
    found: Sequence[tuple[int, str]], allowed: Sequence[str]
) -> tuple[list[Stranger], list[str], list[str]]:
    """The strangers; what is said of those that may not be taken over (nothing when all may); what to type."""
    strangers = gather(found)
    unseen = [f"{holds}: holder not visible" for pid, holds in found if not pid]
    refused = [
        one for one in strangers if not stranger.may_be_taken(one) or not set(one.tokens()) & set(allowed)
    ]
    tokens = [one.token for one in strangers if stranger.may_be_taken(one)]
    kept = [token for token in allowed if token not in tokens]
    rerun = f"look at it, then run again with -e sglang_server_takeover={','.join([*kept, *tokens])}"
    ways = list(dict.fromkeys(stranger.way_out(one, rerun) for one in refused))
    return strangers, [*(line for one in refused for line in one.evidence()), *unseen], ways


def tokens_of(strangers: Sequence[Stranger], allowed: Sequence[str]) -> list[dict[str, Any]]:
    """What the plan keeps of each: the token that was allowed, and how a person reads it."""
    return [
        {
            "token": next(token for token in reversed(one.tokens()) if token in allowed),
            "text": stranger.plan_line(one),
        }
        for one in strangers
    ]
