"""The report's tables: every cell under its head, groups by batch size, drift told by batch size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from action_made import load
from ansible.module_utils.aerie_reports.analysis import analyse
from ansible.module_utils.aerie_reports.sweep import Record
from ansible.module_utils.aerie_reports.tables import table
from test_tune_sweep import play, request


def batches(records: list[Record], slower_again: float = 1.0) -> list[Record]:
    """The same with figures at batch 8 too, there slower in the last measurement."""
    for record in records:
        slower = slower_again if record.setting.kind == "again" else 1.0
        (one,) = record.result["batches"]
        rows = [{**row, "seconds": row["seconds"] * slower} for row in one["rows"]]
        record.result["batches"].append({"batch": 8, "rows": rows, "concurrency": 6.0})
    return records


def results(kind: str, **changes: Any) -> dict[str, Any]:
    sweep, records = play(request(kind=kind, batch_sizes=[1, 8]))
    return analyse(sweep, batches(records, **changes))


@pytest.mark.parametrize("kind", ["tune", "benchmark"])
def test_every_cell_has_a_head(kind: str) -> None:
    found = table(results(kind))
    assert found is not None
    assert {len(row["cells"]) for row in found["rows"] if not row["group"]} == {len(found["heads"])}


def test_a_benchmark_compares_every_batch_size() -> None:
    found = table(results("benchmark"))
    assert found is not None
    assert [row["group"] for row in found["rows"] if row["group"]] == ["batch 1", "batch 8"]
    with_draft, without = found["rows"][1:3]
    assert with_draft["cells"][1]["value"].startswith("× 1.")
    assert without["cells"][1] is None
    assert float(with_draft["cells"][3]["value"]) < float(without["cells"][3]["value"])


def test_drift_at_one_batch_size_is_told_and_widens_that_comparison() -> None:
    quiet, moved = results("benchmark"), results("benchmark", slower_again=1.2)
    assert "no drift at batch 1" in quiet["drift"]["text"]
    assert "drift of 16.3% at batch 8" in moved["drift"]["text"]
    for size, same in (("1", True), ("8", False)):
        low = [found["settings"][0]["batches"][size]["speedup"]["low"] for found in (quiet, moved)]
        assert (low[1] == pytest.approx(low[0], rel=0.02)) is same


def test_parts_of_a_cycle_and_ranks() -> None:
    part = {"share": 0.25, "median_ms": 1.0, "p10_ms": 0.5, "p90_ms": 2.0}
    batch = {
        "batch": 4, "cycles": 30, "cycle_ms": 4.0, "tokens_per_cycle": 3.1,
        "parts": dict.fromkeys(("draft", "verify", "extend", "rest"), part),
    }  # fmt: skip
    rank = {
        "rank": "TP-0",
        "share": 0.2,
        "alone_ms": 2.0,
        "busy_ms": 10.0,
        "names": [{"name": "nccl(x)", "ms": 2.0}],
    }
    trace = {"share": 0.2, "steps": 10, "batch": 4, "ranks": [rank]}
    found = table({"kind": "profile", "profile": [batch], "trace": trace})
    assert found is not None
    assert [row["name"] for row in found["rows"] if not row["group"]][2:] == [
        "draft-extend",
        "the rest",
        "TP-0: nccl",
    ]
    assert {len(row["cells"]) for row in found["rows"] if not row["group"]} == {len(found["heads"])}
    assert table({"kind": "profile", "profile": [], "trace": None}) is None


def test_the_gate_s_record_is_what_the_verdict_says() -> None:
    """The measurement at the end is of the same deployment, and only shows drift."""
    action = load("sglang_tune")
    sweep, records = play(request(kind="benchmark", batch_sizes=[1, 8]))
    records[-1] = replace(records[-1], digest=records[0].digest)
    found = analyse(sweep, batches(records, 1.2))
    (kept,) = action._speedups(found).values()
    assert kept == {size: at["speedup"] for size, at in found["settings"][0]["batches"].items()}
