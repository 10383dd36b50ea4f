"""The page of the fault matrix: what it counts, and that it hides nothing that was not run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

MAIN = Path(__file__).resolve().parents[1] / "faults" / "__main__.py"


def page(lines: list[dict[str, Any]]) -> str:
    spec = importlib.util.spec_from_file_location("faults_main", MAIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.page(lines))


def test_a_fault_counts_by_its_last_run_and_what_was_not_run_is_named() -> None:
    tests = [{"kind": "cut", "test": f"test_cut[{case}]", "what": "Unplugged."} for case in ("a", "b", "c")]
    runs = [("a", "failed", "2026-11-01"), ("a", "passed", "2026-11-03"), ("b", "failed", "2026-11-02")]
    lines: list[dict[str, Any]] = [{"all": tests}]
    lines += [{**tests["abc".index(case)], "outcome": how, "at": at} for case, how, at in runs]
    text = page(lines)
    assert "3 faults: 1 survived, 1 failed, 1 not run (2026-11-02 to 2026-11-03)." in text
    assert "| cut | Unplugged. | a | survived, 2026-11-03 |" in text
    assert "| cut | Unplugged. | b | failed, 2026-11-02 |" in text
    assert "| cut | Unplugged. | c | not run |" in text
