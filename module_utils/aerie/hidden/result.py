"""A verdict and its figures in the form that the module returns and the page shows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .verdict import Segment, Verdict


def comparison_result(verdict: Verdict, details: Mapping[str, Any]) -> dict[str, Any]:
    """What ``sglang_hidden_states`` returns for a comparison. ``details``: of ``hidden_run.compare``."""
    kept = ("tolerance", "dtype", "prompt_tokens", "captured_layers", "training_layers")
    return {
        "passed": verdict.matched,
        "state": verdict.state,
        "verdict": verdict.sentence,
        "next": verdict.next,
        "segments": [_segment(one) for one in verdict.segments],
        "reference_layers": verdict.training_layers,
        "similarity": _similarity(details["candidates"], details["figures"]),
        **{name: details[name] for name in kept},
    }


def _segment(one: Segment) -> dict[str, Any]:
    pair = one.pair or {}
    return {
        "segment": one.number,
        "state": one.state,
        "sentence": one.sentence,
        "served": one.served.name if one.served else None,
        "trained": one.trained.name if one.trained else None,
        **{name: _rounded(pair.get(name)) for name in ("cosine", "norm_ratio", "max_difference", "error")},
    }


def _similarity(names: list[str], figures: Mapping[str, Any]) -> dict[str, Any]:
    """Rows: the states of the server's own forward. Columns: each segment, of the reference and as served."""
    columns = []
    for place in range(len(figures.get("served_to") or [])):
        for name, key in (("trained", "reference_to"), ("served", "served_to")):
            rows = figures[key][place] if place < len(figures[key]) else []
            cosines = [None if one is None else _rounded(one["cosine"]) for one in rows]
            columns.append({"name": f"{name} {place + 1}", "cosine": cosines})
    return {"states": list(names), "columns": columns} if names else {}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
