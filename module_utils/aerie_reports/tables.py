"""The report's table: one of settings, of batch sizes, or of the parts of a cycle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from .estimates import Estimate
from .words import PART_NAMES, judged

Cell: TypeAlias = dict[str, str] | None
Row: TypeAlias = dict[str, Any]
RATE = "In brackets: 95 % intervals. tok/s is output tokens per second of the server, prefill included."


def table(results: Mapping[str, Any]) -> dict[str, Any] | None:
    """``title``, ``first`` and ``heads`` of the columns, ``rows`` (a row with ``group`` is a heading), ``note``."""
    made = {"tune": _settings, "benchmark": _batches, "profile": _parts}[results["kind"]]
    return made(results)


def _settings(results: Mapping[str, Any]) -> dict[str, Any]:
    """A row for each setting."""
    shared = any((s["all_reduce"] or {}).get("kind") not in (None, "none") for s in results["settings"])
    heads = ["accept length"]
    for size in results["batch_sizes"]:
        heads += [f"tok/s, batch {size}", "against none"]
        heads += ["ITL ms"] if size == results["objective"] else []
    heads += ["all-reduce"] if shared else []
    rows = []
    for setting in results["settings"]:
        cells: list[Cell] = [_cell(setting["accept_length"], 2)]
        for size in results["batch_sizes"]:
            at = setting["batches"].get(str(size), {})
            cells += [_cell(at.get("rate"), 1), _gain(at.get("speedup"))]
            if size == results["objective"]:
                cells.append(_cell(at.get("itl_ms"), 2, interval=False))
        if shared:
            kind = (setting["all_reduce"] or {}).get("kind")
            cells.append({"value": kind, "interval": "", "tone": ""} if kind else None)
        best = setting["name"] == results["recommended"] and setting["status"] == "measured"
        rows.append(_row(setting["name"], cells, best=best, setting=setting))
    return {"title": "Every setting", "first": "setting", "heads": heads, "rows": rows, "note": RATE}


def _batches(results: Mapping[str, Any]) -> dict[str, Any]:
    """For each batch size a row with speculation, one without, and the first one again at the end."""
    rows: list[Row] = []
    for size in results["batch_sizes"]:
        rows.append({"group": f"batch {size}"})
        for setting in results["settings"]:
            at = setting["batches"].get(str(size), {})
            cells = [
                _cell(at.get("rate"), 1),
                _gain(at.get("speedup")) if setting["kind"] == "base" else None,
                _cell(at.get("ttft_ms"), 0),
                _cell(at.get("itl_ms"), 2),
                _cell(setting["accept_length"], 2),
            ]
            rows.append(_row(setting["name"], cells, setting=setting))
    heads = ["tok/s", "against none", "first token, ms", "between tokens, ms", "accept length"]
    note = f"{RATE} Times are medians over requests. Accept length: of the pass before the load."
    return {"title": "By batch size", "first": "", "heads": heads, "rows": rows, "note": note}


def _parts(results: Mapping[str, Any]) -> dict[str, Any] | None:
    """For each batch size the parts of its cycles, how they are distributed, and communication by rank."""
    if not results["profile"]:
        return None
    rows: list[Row] = []
    for batch in results["profile"]:
        gained = batch["tokens_per_cycle"]
        gain = f", {gained:.2f} tokens a cycle and request" if gained else ""
        rows.append(
            {"group": f"batch {batch['batch']}: {batch['cycles']} cycles of {batch['cycle_ms']:.2f} ms{gain}"}
        )
        for part, at in batch["parts"].items():
            values = [
                f"{100 * at['share']:.1f} %",
                *(f"{at[name]:.2f}" for name in ("p10_ms", "median_ms", "p90_ms")),
            ]
            rows.append(_row(PART_NAMES[part], [_text(value) for value in values]))
    trace = results["trace"] or {}
    if trace.get("share") is not None:
        rows.append(
            {"group": f"communication, torch trace of {trace['steps']} cycles at batch {trace['batch']}"}
        )
        for rank in trace["ranks"]:
            share, busy = f"{100 * rank['share']:.1f} %", f"{rank['alone_ms']:.2f} of {rank['busy_ms']:.2f}"
            names = ", ".join(one["name"].split("(")[0][:40] for one in rank["names"][:2])
            rows.append(_row(f"{rank['rank']}: {names}", [_text(share), None, _text(busy), None]))
    return {
        "title": "Parts of a cycle",
        "first": "part",
        "heads": ["share", "10th percentile, ms", "median, ms", "90th percentile, ms"],
        "rows": rows,
        "note": "Share: of the time of all cycles. The rest is what lies between the forwards.",
    }


def _row(
    name: str, cells: Sequence[Cell], *, best: bool = False, setting: Mapping[str, Any] | None = None
) -> Row:
    """``setting``: what the row is about, where it can have failed."""
    failed, why = "", ""
    if setting is not None and setting["status"] == "failed":
        failed = str(setting["failure"].get("code") or "see results.json")
        why = str(setting["failure"].get("message") or "").split("\n")[0][:160]
    return {"group": "", "name": name, "cells": list(cells), "best": best, "failed": failed, "why": why}


def _text(value: str) -> Cell:
    return {"value": value, "interval": "", "tone": ""}


def _gain(raw: Mapping[str, float] | None) -> Cell:
    return _cell(raw, 2, "× ", judged(Estimate.from_dict(raw)) if raw else "")


def _cell(
    raw: Mapping[str, float] | None, digits: int, before: str = "", tone: str = "", *, interval: bool = True
) -> Cell:
    if raw is None:
        return None
    span = f"[{raw['low']:.{digits}f}, {raw['high']:.{digits}f}]" if interval else ""
    return {"value": f"{before}{raw['value']:.{digits}f}", "interval": span, "tone": tone}
