"""The table of wiring faults without an engine: what files alone show, the makers of faults, and that the page is what
was measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie.draft.files import read_checkpoint
from ansible.module_utils.aerie.patch.entry import parse_entries

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests" / "wiring")]

from draft_made import DRAFT_VOCAB, LLAMA8, draft_config, draft_tensors, problems, report, write_model
from faults import FAULTS, GRAPH_ONLY, drop_tensor
from render import COLUMNS, page

MEASURED: dict[str, Any] = json.loads((ROOT / "tests" / "wiring" / "measured.json").read_text())
ZERO = {"d2t": ("I64", [DRAFT_VOCAB], [0] * DRAFT_VOCAB)}


@pytest.mark.parametrize(
    ("fault", "ids", "tensors", "algorithm"),
    [
        ("right", [1, 3, 5], {}, "EAGLE3"),
        ("shifted", [2, 4, 6], {}, "EAGLE3"),
        ("one-id-off", [1, 4, 5], {}, "EAGLE3"),
        ("minus-one", [-1, 1, 3], {}, "EAGLE3"),
        ("eagle", [1, 3, 5], {}, "EAGLE"),
        ("zero-d2t", [1, 3, 5], ZERO, "EAGLE3"),
        ("no-d2t", [1, 3, 5], {"d2t": ...}, "EAGLE3"),
    ],
)
def test_what_files_alone_show_is_what_the_table_says(
    tmp_path: Path, fault: str, ids: list[int], tensors: dict[str, Any], algorithm: str
) -> None:
    found = report(
        tmp_path,
        MEASURED["release"],
        target=LLAMA8,
        config=draft_config(ids),
        tensors=draft_tensors(**tensors),
        algorithm=algorithm,
        training_layers=(1, 3, 5),
    )
    row = next(one for one in MEASURED["rows"] if one["fault"] == fault)
    assert bool(problems(found)) is row["checks"]["draft check"]["seen"]


def test_a_tensor_is_dropped_and_the_others_keep_their_bytes(tmp_path: Path) -> None:
    model = write_model(tmp_path / "draft", draft_config([1]), draft_tensors())
    before = read_checkpoint(model)
    drop_tensor(model / "model.safetensors", "d2t")
    after = read_checkpoint(model)
    assert set(before.tensors) - set(after.tensors) == {"d2t"}
    assert "t2d" in after.tensors


def test_the_graph_patch_is_a_patch() -> None:
    entry = parse_entries([{"set": "own", **GRAPH_ONLY}])[0]
    assert entry.for_release(MEASURED["release"])


def test_every_fault_is_in_the_table_and_what_was_tried_is_stopped_by_something() -> None:
    assert [row["fault"] for row in MEASURED["rows"]] == [fault.name for fault in FAULTS]
    for row in MEASURED["rows"]:
        assert "draft check" in row["checks"]
        assert set(row["checks"]) <= set(COLUMNS)
        seen = any(found["seen"] for found in row["checks"].values())
        if row["right"] or len(row["checks"]) > 1:
            assert seen is not row["right"], row["fault"]


def test_the_page_is_what_was_measured() -> None:
    assert (ROOT / "docs" / "wiring-faults.md").read_text() == page(MEASURED)
