"""Decode cycles: what is counted, shares, and the sentence about the bottleneck."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.measure.cycles import figures, read_cycles
from ansible.module_utils.aerie_reports.words import profile_verdict


def line(t: float, batch: int = 1, **changes: Any) -> str:
    cycle = {
        "v": 1, "t": t, "batch": batch, "draft_ms": 1.0, "verify_ms": 19.0, "extend_ms": 0.5, "cycle_ms": 21.0,
        "accepted": 3 * batch, "clock": "cuda_event", "worker": "v2",
    }  # fmt: skip
    return json.dumps({**cycle, **changes})


def test_shares_are_of_the_whole_cycle() -> None:
    (one,) = figures(read_cycles([line(t) for t in range(30)], 0, 100))
    assert one["parts"]["verify"]["share"] == pytest.approx(19 / 21, abs=1e-4)
    assert one["parts"]["rest"]["median_ms"] == pytest.approx(0.5)
    assert sum(part["share"] for part in one["parts"].values()) == pytest.approx(1, abs=1e-3)
    assert one["tokens_per_cycle"] == 3.0


def test_batches_are_told_apart_and_few_cycles_left_out() -> None:
    lines = [line(t, 1) for t in range(30)] + [line(t, 8, verify_ms=30.0, cycle_ms=33) for t in range(25)]
    assert [(b["batch"], b["cycle_ms"]) for b in figures(read_cycles([*lines, line(1, 7)], 0, 99))] == [
        (1, 21.0),
        (8, 33),
    ]


def test_sizes_that_nobody_asked_for_are_left_out() -> None:
    cycles = read_cycles([line(t, size) for t in range(30) for size in (1, 2, 8)], 0, 99)
    assert [b["batch"] for b in figures(cycles, [1, 8])] == [1, 8]


def test_only_whole_cycles_of_the_time_count() -> None:
    lines = [line(1), line(5), line(6, cycle_ms=None), '{"torn', line(50)]
    assert [cycle["t"] for cycle in read_cycles(lines, 4, 40)] == [5]


def test_a_part_longer_than_its_cycle_leaves_no_negative_rest() -> None:
    (cycle,) = read_cycles([line(1, verify_ms=22.0)], 0, 9)
    assert cycle["rest_ms"] == 0.0


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([], "profile-no-cycles"),
        ([line(1)] * 5, "profile-no-cycles"),
        ([json.dumps({"v": 1, "t": 1, "event": "probe_error", "error": "KeyError"})], "profile-timer-failed"),
    ],
)
def test_nothing_to_say_is_an_error(lines: list[str], code: str) -> None:
    with pytest.raises(AerieError) as caught:
        figures(read_cycles(lines, 0, 9))
    assert caught.value.kind.code == code


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "Verify takes 90 % of a 21.00 ms cycle at batch 1"),
        ({"draft_ms": 19.0, "verify_ms": 1.0}, "Draft takes 90 %"),
        ({"verify_ms": 1.0}, "The rest takes 88 %"),
    ],
)
def test_the_bottleneck_is_a_sentence_with_something_to_try(change: dict[str, Any], said: str) -> None:
    batches = figures(read_cycles([line(t, **change) for t in range(30)], 0, 99))
    verdict = profile_verdict({"profile": batches, "settings": []})
    assert verdict[0].startswith(said)
    assert verdict[1].startswith("Try: ")
    assert any("torch trace" in sentence for sentence in verdict)
