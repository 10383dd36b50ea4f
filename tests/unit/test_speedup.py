"""The gate on a benchmark's record: only the very deployment counts, and its lower bound."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.measure import speedup

KNOWN = {
    "aaaa": {"8": {"value": 0.9, "low": 0.85, "high": 0.95}, "1": {"value": 1.31, "low": 1.27, "high": 1.35}}
}


@pytest.mark.parametrize(
    ("digest", "required", "batch", "code"),
    [
        ("aaaa", 1.0, None, None),
        ("aaaa", 1.27, 1, None),
        ("aaaa", 1.28, 1, "speedup-below"),
        ("aaaa", 1.0, 8, "speedup-below"),
        ("aaaa", 1.0, 32, "speedup-unknown"),
        ("bbbb", 1.0, None, "speedup-unknown"),
    ],
)
def test_judge(digest: str, required: float, batch: int | None, code: str | None) -> None:
    if code is None:
        assert "x 1.31 [1.27, 1.35] at batch 1" in speedup.judge(KNOWN, digest, required, batch)
        return
    with pytest.raises(AerieError) as caught:
        speedup.judge(KNOWN, digest, required, batch)
    assert caught.value.kind.code == code


@pytest.mark.parametrize("text", [None, "", "[]", '{"speedups": 3}', "{torn"])
def test_a_missing_or_broken_record_knows_nothing(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / speedup.FILE).write_text(text)
    assert speedup.recorded(tmp_path) == {}


def test_a_record_is_read(tmp_path: Path) -> None:
    (tmp_path / speedup.FILE).write_text(json.dumps({"v": 1, "speedups": KNOWN}))
    assert speedup.recorded(tmp_path) == KNOWN
