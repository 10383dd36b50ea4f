"""Where a decode cycle's time goes, from the lines that the patch set `profile` writes (``cycles.jsonl``). Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any

from ..errors import ErrorKind

NO_CYCLES = ErrorKind(
    "profile-no-cycles",
    "The timers in the server's source wrote too few decode cycles to say anything: the server does not run in mode "
    "profile, does not speculate, or had no load in that time.",
)
TIMER_FAILED = ErrorKind(
    "profile-timer-failed",
    "The timers in the server's source met something that they do not know and stopped.",
)

PARTS = ("draft", "verify", "extend", "rest")
LEAST_CYCLES = 20
"""Fewer cycles of one batch size than this are not reported: they come from the start or the end of a load."""


def read_cycles(lines: Iterable[str], since: float, until: float) -> list[dict[str, Any]]:
    """Whole cycles that began in the time given (seconds since 1970). A cut line is left out."""
    found = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if not isinstance(record, dict) or not since <= float(record.get("t") or 0) <= until:
            continue
        if record.get("event") == "probe_error":
            raise TIMER_FAILED.error(
                "the timers stopped",
                evidence=[str(record.get("error"))],
                next="report the release with this message; production is not touched by it",
            )
        if record.get("cycle_ms") is not None:
            record["rest_ms"] = max(
                0.0, record["cycle_ms"] - sum(record[f"{part}_ms"] for part in PARTS if part != "rest")
            )
            found.append(record)
    return found


def figures(cycles: Sequence[Mapping[str, Any]], sizes: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """By batch size: share, median and spread of each part, in ms, and tokens gained a cycle and request.

    ``sizes``: those that were asked for; a load's last requests run at smaller ones too.
    """
    by_batch: dict[int, list[Mapping[str, Any]]] = {}
    for cycle in cycles:
        by_batch.setdefault(int(cycle["batch"]), []).append(cycle)
    found = [
        _one(size, some)
        for size, some in sorted(by_batch.items())
        if len(some) >= LEAST_CYCLES and (not sizes or size in sizes)
    ]
    if not found:
        raise NO_CYCLES.error(
            f"{len(cycles)} whole decode cycles were written",
            evidence=[f"batch {size}: {len(some)}" for size, some in sorted(by_batch.items())],
            next="raise sglang_tune_prompts or sglang_tune_max_new_tokens; journalctl of the unit names aerie_profile",
        )
    return found


def _one(size: int, cycles: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    whole = sum(float(cycle["cycle_ms"]) for cycle in cycles)
    parts = {}
    for part in PARTS:
        values = [float(cycle[f"{part}_ms"]) for cycle in cycles]
        cuts = quantiles(values, n=10)
        parts[part] = {
            "share": round(sum(values) / whole, 4),
            "median_ms": round(median(values), 4),
            "p10_ms": round(cuts[0], 4),
            "p90_ms": round(cuts[-1], 4),
        }
    gained = [int(cycle["accepted"]) for cycle in cycles if cycle.get("accepted") is not None]
    return {
        "batch": size,
        "cycles": len(cycles),
        "cycle_ms": round(median(float(cycle["cycle_ms"]) for cycle in cycles), 4),
        "tokens_per_cycle": round(sum(gained) / len(gained) / size, 4) if gained else None,
        "clock": str(cycles[0].get("clock")),
        "worker": str(cycles[0].get("worker")),
        "parts": parts,
    }
