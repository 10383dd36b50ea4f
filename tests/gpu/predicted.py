#!/usr/bin/env python3
"""The predicted way against the exhaustive one, on measurements of all chains: `tests/gpu/predicted.py FILE`.

FILE is what the step `speed` measured in turns. `tune`'s own search is asked which chain it would start next, and is
shown that chain's measurement, until it asks for none; so its choice, its starts and its predictions are compared
with all chains' measured rates, within one start of the machine. Runs under the controller's Python.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[2] / "module_utils"))

from ansible.module_utils.aerie_reports.estimates import paired_ratio
from ansible.module_utils.aerie_reports.predict import best, regret
from ansible.module_utils.aerie_reports.search import Measured, allowance, next_length, outlook


def measured(entries: list[dict[str, Any]], server: str, steps: int, batch: int) -> Measured | None:
    """All rounds of one server at one batch size."""
    mine = [e for e in entries if e["server"] == server and e["batch"] == batch and not e["failures"]]
    rows = [row for entry in mine for row in entry["rows"]]
    if not rows:
        return None
    requests = [{"prompt": row["prompt"], "histogram": row["histogram"]} for row in rows if row["histogram"]]
    concurrency = sum(row["seconds"] for row in rows) / sum(entry["seconds"] for entry in mine)
    return Measured(steps, rows, requests, concurrency)


def evaluate(entries: list[dict[str, Any]], batch: int) -> dict[str, Any] | None:
    """What the search would have done at one batch size, and how far its predictions were off."""
    names = {e["server"] for e in entries}
    steps = sorted(int(name[1:]) for name in names if name[:1] == "s" and name[1:].isdigit())
    found = {k: one for k in steps if (one := measured(entries, f"s{k}", k, batch))}
    if len(found) < 3:
        return None
    base = measured(entries, "base", 0, batch)
    shown: dict[int, Measured] = {}
    order: list[int] = []
    while (asked := next_length(sorted(found), shown, baseline=base.rate if base else None)) is not None:
        shown[asked] = found[asked]
        order.append(asked)
    rates = {k: one.rate for k, one in found.items()}
    chosen, _ = best({k: rates[k] for k in shown})
    top, ties = best(rates)
    predictions = outlook(shown, sorted(found)).predictions
    off = {k: predictions[k].rate.value / rates[k].value - 1.0 for k in found if k not in shown}
    lengths = {
        k: predictions[k].accept_length.value / one.own_accept_length().value - 1.0
        for k, one in found.items()
    }
    return {
        "batch": batch,
        "started": order,
        "allowance": allowance(sorted(found)),
        "chosen": chosen,
        "exhaustive_best": top,
        "ties_with_best": ties,
        "found_it": chosen == top or chosen in ties,
        "regret": round(regret(chosen, {k: one.value for k, one in rates.items()}), 4),
        "rates": {k: one.as_dict() for k, one in rates.items()},
        "predicted": {k: one.as_dict() for k, one in predictions.items()},
        "prediction_off": {k: round(value, 4) for k, value in off.items()},
        "largest_off": round(max(map(abs, off.values()), default=0.0), 4),
        "accept_length_off": {k: round(value, 4) for k, value in lengths.items()},
        "against_baseline": _against(found[chosen], base),
        "against_five_steps": _against(found[chosen], found.get(5)),
    }


def _against(one: Measured, other: Measured | None) -> dict[str, float] | None:
    """Ratio of the rates with its interval, paired by prompt."""
    if other is None:
        return None
    factor = one.concurrency / other.concurrency
    return dict(paired_ratio(one.rows, other.rows, "tokens", "seconds").scaled(factor).as_dict())


def main() -> None:
    entries = json.loads(Path(sys.argv[1]).read_text())
    batches = sorted({entry["batch"] for entry in entries})
    print(json.dumps({str(batch): found for batch in batches if (found := evaluate(entries, batch))}))


if __name__ == "__main__":
    main()
