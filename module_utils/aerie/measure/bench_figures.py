"""A load's figures in one table, for people and for the result. Medians only; intervals are the controller's work."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any


def batch_figures(batch: int, rows: Sequence[dict[str, Any]], duration: float) -> dict[str, Any]:
    """Figures of one batch size. ``duration``: seconds from the first request to the last answer."""
    tokens = sum(int(row["tokens"]) for row in rows)
    seconds = sum(float(row["seconds"]) for row in rows)
    between = [float(row["itl"]) for row in rows if row["itl"] is not None]
    return {
        "batch": batch,
        "requests": len(rows),
        "tokens": tokens,
        "duration_s": round(duration, 4),
        # Mean number of requests at work: below the batch size, since the last ones run alone.
        "concurrency": round(seconds / duration, 4),
        "output_tokens_per_second": round(tokens / duration, 3),
        "ttft_ms": round(1e3 * median(float(row["ttft"]) for row in rows), 3),
        "itl_ms": round(1e3 * median(between), 4) if between else None,
        "rows": list(rows),
    }


def summary(batches: Sequence[dict[str, Any]], accept_length: float | None) -> list[str]:
    """One line for each batch size."""
    lines = [
        f"batch {b['batch']}: {b['output_tokens_per_second']:.1f} tok/s, first token {b['ttft_ms']:.0f} ms, "
        f"then {b['itl_ms']:.2f} ms a token ({b['requests']} requests)"
        for b in batches
    ]
    if accept_length is not None:
        lines.append(f"accept length {accept_length:.3f}")
    return lines
