"""How much of the GPU's time is communication, from torch traces of ``/start_profile``, a file each rank. Pure.

A share is claimed only from kernels that a trace holds. What is counted are moments, not durations: where two kernels
run at once the moment counts once, and communication that runs beside computing is told apart from communication that
runs alone. A kernel of a collective also spins until the other ranks have come, so a rank's share has its waiting in
it; the rank that the others wait for has the least.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

Span: TypeAlias = tuple[float, float]
"""Begin and end, in microseconds of the trace's clock."""

# NCCL and RCCL (ncclDevKernel_…); SGLang's own all-reduce (cross_device_reduce_1stage); flashinfer's, fused with the
# norm behind it (allreduce_fusion_kernel_oneshot_lamport), which counts whole; torch's symmetric memory
# (multimem_all_reduce_kernel, one_shot_…); quick reduce of AMD; DeepEP's and other dispatch and combine of experts.
_COMMUNICATION = re.compile(
    r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce|quick_?reduce|lamport"
    r"|multimem|nvshmem|deep_?ep|mscclpp|memcpy p(to|2)p",
    re.IGNORECASE,
)
_RANK = re.compile(r"((?:TP|DP|PP|EP)-\d+(?:-(?:TP|DP|PP|EP)-\d+)*)")
LEAST_KERNELS = 20
"""A trace with fewer kernels than this did not see a decode cycle."""
SHOWN = 5


def is_communication(name: str) -> bool:
    """Whether a kernel (or a copy between GPUs), by its name, moves data between GPUs."""
    return bool(_COMMUNICATION.search(name))


def rank_of(file_name: str) -> str:
    """``TP-3`` or ``TP-3-DP-1`` of a trace's file name; the name itself when it has none."""
    found = _RANK.search(file_name)
    return found.group(1) if found else file_name


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same moments as spans that do not touch, in order."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif end > begin:
            found.append((begin, end))
    return found


def total(spans: Iterable[Span]) -> float:
    """Length of spans that do not touch."""
    return sum(end - begin for begin, end in spans)


def common(ones: Sequence[Span], others: Sequence[Span]) -> float:
    """Length of the moments that both have; each given as :func:`merged` gives them."""
    length, i, j = 0.0, 0, 0
    while i < len(ones) and j < len(others):
        length += max(0.0, min(ones[i][1], others[j][1]) - max(ones[i][0], others[j][0]))
        if ones[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return length


def rank_figures(rank: str, events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One rank's figures from its ``traceEvents``; times in ms.

    ``busy_ms``: moments in which at least one kernel ran; ``alone_ms``: only communication; ``beside_ms``:
    communication and computing at once. ``share`` is alone / busy, None with too few kernels.
    """
    talk: list[Span] = []
    compute: list[Span] = []
    names: dict[str, float] = {}
    for event in events:
        if event.get("ph") != "X" or event.get("cat") not in ("kernel", "gpu_memcpy"):
            continue
        name, begin = str(event.get("name")), float(event["ts"])
        span = (begin, begin + float(event.get("dur") or 0))
        if is_communication(name):
            talk.append(span)
            names[name] = names.get(name, 0.0) + span[1] - span[0]
        elif event["cat"] == "kernel":  # copies within the GPU are no kernels
            compute.append(span)
    talk_spans, compute_spans = merged(talk), merged(compute)
    busy, beside = total(merged([*talk, *compute])), common(talk_spans, compute_spans)
    every = [*talk, *compute]
    enough = len(every) >= LEAST_KERNELS and busy > 0
    alone = total(talk_spans) - beside
    longest = sorted(names, key=lambda name: -names[name])[:SHOWN]
    return {
        "rank": rank,
        "kernels": len(every),
        "communication_kernels": len(talk),
        "span_ms": _ms(max(end for _, end in every) - min(begin for begin, _ in every)) if every else 0.0,
        "busy_ms": _ms(busy),
        "alone_ms": _ms(alone),
        "beside_ms": _ms(beside),
        "share": round(alone / busy, 4) if enough else None,
        "share_beside": round(beside / busy, 4) if enough else None,
        "names": [{"name": name[:120], "ms": _ms(names[name])} for name in longest],
    }


def _ms(microseconds: float) -> float:
    return round(microseconds / 1e3, 3)


def trace_figures(ranks: Sequence[Mapping[str, Any]], expected: int | None = None) -> dict[str, Any]:
    """What can be claimed of all ranks: ``share`` in the middle with lowest and highest, or None and ``why``.

    expected: how many ranks the server has; None when it does not tell.
    """
    found: dict[str, Any] = {
        "ranks": list(ranks), "share": None, "share_low": None, "share_high": None, "why": "",
    }  # fmt: skip
    mute = [str(one["rank"]) for one in ranks if one["share"] is None]
    if not ranks:
        found["why"] = "there is no trace"
    elif expected is not None and len(ranks) < expected:
        found["why"] = f"there are traces of {len(ranks)} of {expected} ranks"
    elif all(one["kernels"] == 0 for one in ranks):
        found["why"] = "the trace holds no GPU kernel, as on a CPU"
    elif mute:
        found["why"] = f"the trace of {', '.join(mute)} holds hardly any kernel"
    else:
        shares = [float(one["share"]) for one in ranks]
        beside = [float(one["share_beside"]) for one in ranks]
        found.update(
            share=statistics.median(shares),
            share_low=min(shares),
            share_high=max(shares),
            share_beside=statistics.median(beside),
        )
    return found
