"""Statistics, loops, the report of a run, the gate and the options."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie.accept.causes import first_position, likely_causes
from ansible.module_utils.aerie.accept.gate import judge
from ansible.module_utils.aerie.accept.loops import loop_reason
from ansible.module_utils.aerie.accept.meta import Answer, read_answer
from ansible.module_utils.aerie.accept.options import MeasureOptions, check_floor
from ansible.module_utils.aerie.accept.report import SPECULATIVE_FIGURES, report
from ansible.module_utils.aerie.accept.server import ServerSettings
from ansible.module_utils.aerie.accept.statistics import (
    acceptance_by_position,
    ratio_interval,
    sum_histograms,
)
from ansible.module_utils.aerie.errors import AerieError

DATA = Path(__file__).parent / "data" / "accept"
RUNS: dict[str, list[dict[str, Any]]] = json.loads((DATA / "runs-0.5.17.json").read_text())
OUTPUTS: list[dict[str, Any]] = json.loads((DATA / "outputs-0.5.17.json").read_text())

SERVED = ServerSettings(
    source="/server_info",
    why_unknown=None,
    version="0.5.17",
    algorithm="EAGLE3",
    steps=5,
    draft_tokens=6,
    topk=1,
    thresholds=(("speculative_accept_threshold_acc", 1.0),),
)
UNKNOWN = ServerSettings(source=None, why_unknown="/server_info answered HTTP 401")
OPTIONS = MeasureOptions(num_steps=5, num_draft_tokens=6)


def answers_of(run: str, drop: tuple[str, ...] = ()) -> list[Answer]:
    """Answers of a captured run; outputs are made natural, and counters named in ``drop`` taken away."""
    return [
        read_answer(
            index,
            {
                "text": "text",
                "output_ids": list(range(meta["completion_tokens"])),
                "meta_info": {k: v for k, v in meta.items() if not k.startswith(drop)} if drop else meta,
            },
            1.0,
        )
        for index, meta in enumerate(RUNS[run])
    ]


# Reference: scipy 1.17.1, scipy.stats.bootstrap(paired=True, method="BCa", n_resamples=200000) over the same pairs.
# 2000 resamples put the bounds within a few hundredths of that, so 0.06 is allowed.
SCIPY = {
    ("right",): (4.42222, 3.71963, 5.05397),
    ("shallow",): (2.13405, 1.84687, 2.73540),
    ("right", "shallow"): (2.87884, 2.33089, 3.58559),
}


@pytest.mark.parametrize("runs", SCIPY)
def test_interval_agrees_with_scipy(runs: tuple[str, ...]) -> None:
    pairs = [(m["completion_tokens"] - 1, m["spec_verify_ct"]) for run in runs for m in RUNS[run]]
    interval = ratio_interval(pairs, 0.95, seed=1)
    value, low, high = SCIPY[runs]
    assert interval.value == pytest.approx(value, abs=1e-5)
    assert interval.low == pytest.approx(low, abs=0.06)
    assert interval.high == pytest.approx(high, abs=0.06)


def test_interval_is_fixed_by_its_seed_and_widens_with_confidence() -> None:
    pairs = [(m["completion_tokens"] - 1, m["spec_verify_ct"]) for m in RUNS["right"]]
    assert ratio_interval(pairs, 0.95, 7) == ratio_interval(pairs, 0.95, 7)
    assert ratio_interval(pairs, 0.95, 7) != ratio_interval(pairs, 0.95, 8)
    assert ratio_interval(pairs, 0.99, 7).low < ratio_interval(pairs, 0.80, 7).low


def test_interval_of_equal_requests_has_no_width() -> None:
    interval = ratio_interval([(90, 30)] * 24, 0.95, 1)
    assert (interval.low, interval.value, interval.high) == (3.0, 3.0, 3.0)
    assert "no variation" in interval.method


@pytest.mark.parametrize("pairs", [[], [(1, 0)], [(-1, 2)]])
def test_interval_refuses_pairs_without_meaning(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="at least one pair"):
        ratio_interval(pairs, 0.95, 1)


def test_interval_of_200_requests_is_quick() -> None:
    rng = random.Random(3)
    pairs = [(127, rng.randint(30, 120)) for _ in range(200)]
    start = time.process_time()
    ratio_interval(pairs, 0.95, 1)
    assert time.process_time() - start < 0.5


def test_acceptance_by_position() -> None:
    assert sum_histograms([[1, 2], [0, 0, 0, 4]], 3) == [1, 2, 0, 4]
    first, second, third = acceptance_by_position([1, 2, 0, 4])
    assert first == {"position": 1, "unconditional": 0.8571, "conditional": 0.8571, "verifies": 7}
    assert second == {"position": 2, "unconditional": 0.5714, "conditional": 0.6667, "verifies": 6}
    assert third == {"position": 3, "unconditional": 0.5714, "conditional": 1.0, "verifies": 4}
    assert acceptance_by_position([5, 0, 0])[1] == {
        "position": 2,
        "unconditional": 0.0,
        "conditional": None,
        "verifies": 0,
    }


RING = list(range(256, 358))
"""Shape of the CPU test pair's text: 102 tokens, each with one successor, round and round."""


@pytest.mark.parametrize("length", [10, 64, 128, 500, 2000])
def test_ring_text_of_the_test_pair_is_no_loop(length: int) -> None:
    assert loop_reason((RING * 20)[:length]) is None


@pytest.mark.parametrize(
    ("tokens", "period"),
    [
        ([5] * 64, 1),
        ([5, 9] * 64, 2),
        ([5, 9] * 10, 2),
        ([*range(60), *[5, 9] * 34], 2),
        (list(range(20)) * 6, 20),
    ],
)
def test_loops_are_found(tokens: list[int], period: int) -> None:
    reason = loop_reason(tokens)
    assert reason is not None
    assert reason.endswith(f"period of {period}")


def test_near_loop_with_a_counter_is_found() -> None:
    tokens = [token for number in range(20) for token in (1, 2, 3, 4, 5, 1, 2, 3, 4, 100 + number % 3)]
    tokens[57] = 6
    assert loop_reason(tokens) is not None


@pytest.mark.parametrize(
    ("index", "loops"),
    [(0, False), (1, False), (2, False), (3, True), (4, True), (5, True), (6, False), (7, True)],
)
def test_captured_outputs(index: int, loops: bool) -> None:
    assert (loop_reason(OUTPUTS[index]["output_ids"]) is not None) is loops


def test_prose_and_a_list_are_no_loop() -> None:
    prose = Path(__file__).read_text().split()
    assert loop_reason(prose[:400]) is None
    table = [
        "|",
        "a",
        "|",
        "b",
        "|",
        *["|", "---"] * 8,
        *["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
    ]
    assert loop_reason([*prose[:90], *table]) is None


# accept length = sum(199) / sum(verifies); uncut = 1 + accepted / verifies; both worked out by hand from the file.
@pytest.mark.parametrize(
    ("run", "length", "served", "uncut", "rate", "histogram"),
    [
        ("right", 1592 / 360, 1600 / 360, 1 + 1248 / 360, 1248 / 1800, [36, 25, 67, 20, 31, 181]),
        ("shallow", 1592 / 746, 1600 / 746, 1 + 854 / 746, 854 / 3730, [360, 172, 101, 26, 33, 54]),
        ("rand", 1.0, 1600 / 1592, 1.0, 0.0, [1592, 0, 0, 0, 0, 0]),
    ],
)
def test_figures_of_captured_runs(
    run: str, length: float, served: float, uncut: float, rate: float, histogram: list[int]
) -> None:
    figures = report(answers_of(run), OPTIONS, SERVED, wall_seconds=10.0)
    assert figures["accept_length"] == pytest.approx(length, abs=1e-4)
    assert figures["accept_length_served"] == pytest.approx(served, abs=1e-4)
    assert figures["accept_length_uncut"] == pytest.approx(uncut, abs=1e-4)
    assert figures["accept_rate"] == pytest.approx(rate, abs=1e-4)
    assert figures["histogram"] == histogram
    assert figures["tokens"] == 1600
    assert figures["output_tokens_per_second"] == 160.0
    assert figures["tokens_cut"] == sum(max(a.cut_tokens or 0, 0) for a in answers_of(run))
    assert figures["unavailable"] == {}
    assert figures["derived"] == {}
    assert len(figures["rows"]) == 8


COUNTERS = ("spec_num", "spec_acc", "spec_prop")


def test_release_without_counters_derives_what_it_can_and_says_so() -> None:
    answers = answers_of("rand", (*COUNTERS, "spec_correct"))
    figures = report(answers, OPTIONS, UNKNOWN, wall_seconds=10.0)
    assert figures["accept_length"] == 1.0
    assert figures["accept_rate"] == 0.0
    assert set(figures["derived"]) == {"accepted_drafts", "accept_rate"}
    for name in ("histogram", "acceptance_by_position", "accept_length_uncut", "tokens_cut"):
        assert figures[name] is None
        assert figures["unavailable"][name]
    assert "HTTP 401" in figures["unavailable"]["accept_thresholds"]


def test_accept_rate_is_unknown_without_a_step_count() -> None:
    answers = answers_of("right", (*COUNTERS, "spec_correct"))
    figures = report(answers, MeasureOptions(), UNKNOWN, wall_seconds=10.0)
    assert figures["accept_rate"] is None
    assert "how many drafts" in figures["unavailable"]["accept_rate"]
    assert figures["accept_length"] == pytest.approx(1592 / 360, abs=1e-4)


def test_adaptive_server_has_no_accept_rate() -> None:
    figures = report(answers_of("right"), MeasureOptions(), replace(SERVED, adaptive=True), wall_seconds=10.0)
    assert figures["accept_rate"] is None
    assert "adaptive" in figures["unavailable"]["accept_rate"]
    assert figures["histogram"] == [36, 25, 67, 20, 31, 181]


def test_baseline_has_no_accept_figures_and_must_not_speculate() -> None:
    options = MeasureOptions(speculative=False)
    figures = report(answers_of("right", ("spec_",)), options, SERVED, wall_seconds=10.0)
    for name in SPECULATIVE_FIGURES:
        assert figures[name] is None
        assert figures["unavailable"][name]
    assert judge(figures, None, {})[0].startswith("answers checked")
    with pytest.raises(AerieError) as refused:
        report(answers_of("right"), options, SERVED, wall_seconds=10.0)
    assert refused.value.kind.code == "accept-speculation-unexpected"


def test_few_loops_are_left_out_and_many_refused() -> None:
    answers = [replace(a, index=8 * turn + a.index) for turn in range(3) for a in answers_of("right")]
    loop = tuple([5, 9] * 100)
    two = [replace(a, output_ids=loop) if a.index < 2 else a for a in answers]
    figures = report(two, OPTIONS, SERVED, wall_seconds=10.0)
    assert (figures["requests"], figures["requests_degenerate"], figures["tokens"]) == (24, 2, 22 * 200)
    assert figures["rows"][0]["degenerate"] is not None
    assert figures["verify_ct"] == 3 * 360 - 45 - 63
    three = [replace(a, output_ids=loop) if a.index < 3 else a for a in answers]
    with pytest.raises(AerieError) as refused:
        report(three, OPTIONS, SERVED, wall_seconds=10.0)
    assert refused.value.kind.code == "accept-output-degenerate"
    assert "3 of 24" in refused.value.what


def test_text_is_judged_where_ids_are_missing() -> None:
    answers = [replace(a, output_ids=None, text="so it goes " * 40) for a in answers_of("right")]
    with pytest.raises(AerieError) as refused:
        report(answers, OPTIONS, SERVED, wall_seconds=10.0)
    assert refused.value.kind.code == "accept-output-degenerate"


@pytest.mark.parametrize(
    ("options", "count", "refused"),
    [
        (replace(OPTIONS, min_tokens=1600), 8, False),
        (replace(OPTIONS, min_tokens=1601), 8, True),
        (replace(OPTIONS, min_accept_length=2.0), 5, False),
        (replace(OPTIONS, min_accept_length=2.0), 4, True),
        (OPTIONS, 4, False),
    ],
)
def test_too_few_tokens_or_requests(options: MeasureOptions, count: int, refused: bool) -> None:
    answers = answers_of("right")[:count]
    if not refused:
        report(answers, options, SERVED, wall_seconds=1.0)
        return
    with pytest.raises(AerieError) as error:
        report(answers, options, SERVED, wall_seconds=1.0)
    assert error.value.kind.code == "accept-sample-too-small"


def test_gate_goes_by_the_lower_bound() -> None:
    figures = report(answers_of("right"), OPTIONS, SERVED, wall_seconds=10.0)
    low = figures["accept_length_interval"][0]
    assert "clears the floor" in judge(figures, low, {})[0]
    assert "only measured" in judge(figures, None, {})[0]
    with pytest.raises(AerieError) as below:
        judge(figures, low + 0.0001, {})
    assert below.value.kind.code == "accept-length-below-floor"
    assert "more prompts" in below.value.next
    text = below.value.message()
    assert f"[{low}, " in text
    assert "acceptance by position: 1: 90%" in text
    assert "likely cause 1: the interval is wide" in text


@pytest.mark.parametrize(
    ("run", "floor", "first"),
    [("rand", 1.5, "never sees the right hidden states"), ("shallow", 3.5, "set for another step count")],
)
def test_likeliest_cause_comes_first(run: str, floor: float, first: str) -> None:
    figures = report(answers_of(run), OPTIONS, SERVED, wall_seconds=10.0)
    assert first in likely_causes(figures, floor, {})[0]


def test_causes_by_shape() -> None:
    figures = report(answers_of("right"), OPTIONS, SERVED, wall_seconds=10.0)
    weak = {**figures, "acceptance_by_position": acceptance_by_position([80, 15, 5])}
    collapse = {**figures, "acceptance_by_position": acceptance_by_position([20, 70, 10])}
    assert "off by one" in likely_causes(weak, 5.5, {})[0]
    assert "later ones collapse" in likely_causes(collapse, 5.5, {})[0]
    assert first_position(
        {**figures, "acceptance_by_position": None, "accept_length": 1.02}
    ) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("floor", "steps", "refused"),
    [
        (None, 2, False),
        (1.0, 2, False),
        (2.99, 2, False),
        (3.0, 2, True),
        (0.99, 2, True),
        (float("nan"), 2, True),
        (7.0, None, False),
    ],
)
def test_floor_belongs_to_a_step_count(floor: float | None, steps: int | None, refused: bool) -> None:
    if not refused:
        check_floor(floor, steps)
        return
    with pytest.raises(AerieError) as error:
        check_floor(floor, steps)
    assert error.value.kind.code == "accept-floor-invalid"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"num_steps": 0}, "accept-option-invalid"),
        ({"num_draft_tokens": 1}, "accept-option-invalid"),
        ({"num_prompts": 0}, "accept-option-invalid"),
        ({"concurrency": 0}, "accept-option-invalid"),
        ({"max_new_tokens": 1}, "accept-option-invalid"),
        ({"min_tokens": -1}, "accept-option-invalid"),
        ({"temperature": float("nan")}, "accept-option-invalid"),
        ({"confidence": 1.0}, "accept-option-invalid"),
        ({"confidence": 95.0}, "accept-option-invalid"),
        ({"timeout": 0.0}, "accept-option-invalid"),
        ({"speculative": False, "min_accept_length": 2.0}, "accept-floor-invalid"),
        ({"num_steps": 2, "min_accept_length": 3.0}, "accept-floor-invalid"),
    ],
)
def test_senseless_options_are_refused(change: dict[str, Any], code: str) -> None:
    with pytest.raises(AerieError) as refused:
        replace(MeasureOptions(), **change).check()
    assert refused.value.kind.code == code
