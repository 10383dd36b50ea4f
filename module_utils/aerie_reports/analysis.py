"""From the records of a sweep to results: figures with intervals, predictions beside measurements, the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .acceptance import conditional, survival
from .estimates import Drift, Estimate, drift, median, paired_ratio
from .search import Measured, Outlook, can_predict, outlook
from .settings import chain_of
from .sweep import MEASURED, Record, Sweep, best_record, record_of
from .words import benchmark_verdict, floor_for, inventory_lines, profile_verdict, tune_verdict, variables_of


def analyse(sweep: Sweep, records: Sequence[Record]) -> dict[str, Any]:
    """Everything that the report shows, as JSON."""
    baseline, base = record_of(records, "baseline"), record_of(records, "base")
    moved = _drift(sweep, records)
    settings = [_setting(sweep, record, baseline, base, moved) for record in records]
    results: dict[str, Any] = {
        "v": 1,
        "kind": sweep.kind,
        "batch_sizes": list(sweep.batch_sizes),
        "objective": sweep.objective,
        "settings": settings,
        "drift": _told(sweep, moved),
        "starts": sum(record.setting.kind == "chain" for record in records),
        "lengths": list(sweep.lengths),
        "seconds": round(sum(record.seconds for record in records), 1),
    }
    results["acceptance"] = _acceptance(records)
    view = _outlook(sweep, records)
    results["cost"] = None if view is None else _cost(view)
    results["predictions"] = [] if view is None else _predictions(sweep, records, view)
    chosen = recommended(sweep, records)
    results["recommended"] = None if chosen is None else chosen.setting.name
    for entry, record in zip(settings, records, strict=True):
        gain = None if chosen is None else _against(sweep.objective, record, chosen, moved)
        entry["over_recommended"] = None if gain is None or record is chosen else gain.as_dict()
    if chosen is None:
        results |= {"floor": sweep.floor, "variables": {}, "inventory": ""}
    else:
        results["floor"] = _floor(sweep, base, chosen)
        results["variables"] = variables_of(sweep.base, chosen.setting, results["floor"])
        results["inventory"] = inventory_lines(sweep.base, chosen.setting, results["variables"])
    results["profile"] = next((r.result["profile"] for r in reversed(records) if r.result.get("profile")), [])
    results["trace"] = next((r.result["trace"] for r in reversed(records) if r.result.get("trace")), None)
    verdicts = {"benchmark": benchmark_verdict, "tune": tune_verdict, "profile": profile_verdict}
    results["verdict"] = verdicts[sweep.kind](results)
    return results


def recommended(sweep: Sweep, records: Sequence[Record]) -> Record | None:
    """The fastest setting, when it is clearly faster than the inventory's own; otherwise that one.

    Without a measurement of the inventory's own there is nothing to be faster than: then the fastest.
    """
    best, base = best_record(sweep, records), record_of(records, "base")
    if best is None or base is None or best is base:
        return best
    gain = _against(sweep.objective, best, base, _drift(sweep, records))
    return best if gain is not None and gain.low > 1.0 else base


def _floor(sweep: Sweep, base: Record | None, chosen: Record) -> float:
    """The floor of the accept length that goes with the chosen setting."""
    if chosen.setting.steps == sweep.base.steps:
        return sweep.floor
    return floor_for(sweep.floor, base.accept_length() if base else None, chosen.accept_length())


def _drift(sweep: Sweep, records: Sequence[Record]) -> dict[int, Drift]:
    """By batch size."""
    first, again = record_of(records, "base"), record_of(records, "again")
    if first is None or again is None:
        return {}
    sizes = [size for size in sweep.batch_sizes if first.rows(size) and again.rows(size)]
    return {size: drift(first.rows(size), again.rows(size)) for size in sizes}


def _told(sweep: Sweep, moved: Mapping[int, Drift]) -> dict[str, Any] | None:
    """The largest drift, in words; where there is none, that of the batch size that decides."""
    if not moved:
        return None
    seen = [size for size in moved if moved[size].seen]
    size = max(seen, key=lambda one: moved[one].size) if seen else sweep.objective
    where = f" at batch {size}" if len(moved) > 1 else ""
    return {"ratio": moved[size].ratio.as_dict(), "batch": size, "text": moved[size].text(where)}


def _against(size: int, one: Record, other: Record | None, drifts: Mapping[int, Drift]) -> Estimate | None:
    """Speed of one over another, prompt by prompt, drift included."""
    if other is None or not one.rows(size) or not other.rows(size):
        return None
    mine, theirs = one.batch(size), other.batch(size)
    assert mine is not None
    assert theirs is not None
    found = paired_ratio(one.rows(size), other.rows(size), "tokens", "seconds")
    found = found.scaled(mine["concurrency"] / theirs["concurrency"])
    # Seen at one batch size it is there at all: a machine is not quiet at one of them only.
    return drifts[size].widen(found) if any(one.seen for one in drifts.values()) and size in drifts else found


def _setting(
    sweep: Sweep, record: Record, baseline: Record | None, base: Record | None, moved: Mapping[int, Drift]
) -> dict[str, Any]:
    batches = {}
    for size in sweep.batch_sizes:
        rate, rows = record.rate(size), record.rows(size)
        if rate is None:
            continue
        speedup = None if record is baseline else _against(size, record, baseline, moved)
        over_base = None if record is base else _against(size, record, base, moved)
        batches[str(size)] = {
            "rate": rate.as_dict(),
            "ttft_ms": median(rows, "ttft").scaled(1e3).as_dict(),
            "itl_ms": median(rows, "itl").scaled(1e3).as_dict(),
            "speedup": None if speedup is None else speedup.as_dict(),
            "over_base": None if over_base is None else over_base.as_dict(),
            "requests": len(rows),
        }
    acceptance = record.result.get("acceptance") or {}
    length = acceptance.get("accept_length")
    return {
        "name": record.setting.name,
        "kind": record.setting.kind,
        "steps": record.setting.steps,
        "key": record.setting.key,
        "digest": record.digest,
        "status": record.status,
        "failure": dict(record.failure),
        "seconds": round(record.seconds, 1),
        "accept_length": None
        if length is None
        else {
            "value": length,
            **dict(zip(("low", "high"), acceptance["accept_length_interval"], strict=True)),
        },
        "all_reduce": record.result.get("all_reduce") or None,
        "accept_length_uncut": acceptance.get("accept_length_uncut"),
        "batches": batches,
    }


def _chains(sweep: Sweep, records: Sequence[Record]) -> dict[int, Measured]:
    """Measured chains on the inventory's own arguments and environment, by steps."""
    keys = {chain_of(sweep.base, steps).key for steps in {*sweep.lengths, sweep.base.steps} - {0}}
    return {
        record.setting.steps: record.measured(sweep.objective)
        for record in records
        if record.status == MEASURED
        and record.setting.kind in ("base", "chain")
        and record.setting.key in keys
        and record.setting.steps
        and record.batch(sweep.objective)
    }


def _outlook(sweep: Sweep, records: Sequence[Record]) -> Outlook | None:
    if sweep.kind != "tune":
        return None
    chains = _chains(sweep, records)
    with_acceptance = {steps: one for steps, one in chains.items() if one.requests}
    if not with_acceptance or not can_predict(with_acceptance, max(with_acceptance)):
        return None
    longest = max(with_acceptance)
    return outlook(with_acceptance, [s for s in {*sweep.lengths, sweep.base.steps} if 0 < s <= longest])


def _acceptance(records: Sequence[Record]) -> dict[str, Any] | None:
    """By position, from the longest chain that was measured."""
    found = [r for r in records if r.status == MEASURED and r.requests()]
    if not found:
        return None
    longest = max(found, key=lambda record: record.setting.steps)
    width = max(len(row["histogram"]) for row in longest.requests())
    total = [sum((row["histogram"] + [0] * width)[i] for row in longest.requests()) for i in range(width)]
    return {
        "setting": longest.setting.name,
        "histogram": total,
        "unconditional": [round(share, 4) for share in survival(total)],
        "conditional": [None if share is None else round(share, 4) for share in conditional(total)],
    }


def _cost(view: Outlook) -> dict[str, Any]:
    line = view.cost.line
    return {
        "at_zero_ms": round(line.at_zero * 1e3, 4),
        "at_zero_sigma_ms": round(line.at_zero_sigma * 1e3, 4),
        "step_ms": round(line.slope * 1e3, 4),
        "step_sigma_ms": round(line.slope_sigma * 1e3, 4),
        "residual": round(line.residual, 4),
        "points": [
            {
                "steps": p.steps,
                "cycle_ms": round(p.seconds * 1e3, 4),
                "sigma_ms": round(p.sigma * 1e3, 4),
            }
            for p in view.cost.points
        ],
    }


def _predictions(sweep: Sweep, records: Sequence[Record], view: Outlook) -> list[dict[str, Any]]:
    """Each chain length, with what was predicted before it was measured where that is known.

    A measured chain is part of the final fit, so its own figure there is no prediction. What counts is the forecast
    from the other chains: its cycle is taken out and predicted by the rest, where two others are left.
    """
    chains = _chains(sweep, records)
    longest = max(view.predictions)
    found = []
    for steps in sorted(view.predictions):
        entry: dict[str, Any] = {"measured": None, "error": None, "accept_length_error": None}
        entry.update(view.predictions[steps].as_dict())
        if steps in chains:
            entry["measured"] = chains[steps].rate.as_dict()
            forecast = _forecast(chains, steps, longest)
            if forecast is not None:
                entry["rate"] = forecast.as_dict()
                entry["error"] = round(forecast.value / chains[steps].rate.value - 1, 4)
            if chains[steps].requests and steps != longest:
                own = chains[steps].own_accept_length()
                entry["accept_length_measured"] = own.as_dict()
                entry["accept_length_error"] = round(
                    view.predictions[steps].accept_length.value / own.value - 1, 4
                )
        found.append(entry)
    return found


def _forecast(chains: Mapping[int, Measured], steps: int, longest: int) -> Estimate | None:
    others = {s: one for s, one in chains.items() if s != steps}
    if steps == longest or len(others) < 2:
        return None
    return outlook(others, [s for s in chains if s <= longest]).predictions[steps].rate
