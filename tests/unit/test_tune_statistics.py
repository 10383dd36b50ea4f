"""Intervals, paired ratios and drift against data whose truth is known."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie_reports import acceptance
from ansible.module_utils.aerie_reports.cost import CyclePoint, fit_cycles, fit_line
from ansible.module_utils.aerie_reports.estimates import Drift, Estimate, drift, paired_ratio, ratio

TREE = Path(__file__).resolve().parents[2]


def rows(speed: float, *, seed: int = 0, noise: float = 0.02, prompts: int = 24) -> list[dict]:
    """Requests of 100 tokens; every prompt has its own difficulty, the same at every speed."""
    hard = np.random.default_rng(5).uniform(0.8, 1.25, prompts)
    source = np.random.default_rng(seed)
    return [
        {"prompt": p, "tokens": 100, "seconds": 100 / speed * hard[p] * source.normal(1, noise), "ttft": 0.05}
        for p in range(prompts)
    ]


def test_a_ratio_of_sums_is_not_a_mean_of_ratios() -> None:
    two = [{"prompt": p, "tokens": n, "seconds": s} for p, (n, s) in enumerate([(10, 1), (100, 2)] * 3)]
    assert ratio(two, "tokens", "seconds").value == pytest.approx(330 / 9)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(60):
        source = np.random.default_rng(seed)
        made = [
            {"prompt": p, "tokens": 100.0, "seconds": source.gamma(20, 1 / 20)} for p in range(24)
        ]  # true ratio: 100
        found = ratio(made, "tokens", "seconds")
        hits += found.low <= 100 <= found.high
    assert 51 <= hits <= 60


def test_the_same_data_give_the_same_interval() -> None:
    assert ratio(rows(90), "tokens", "seconds") == ratio(rows(90), "tokens", "seconds")


def test_pairing_sees_what_the_single_intervals_do_not() -> None:
    slow, fast = rows(90, seed=1), rows(94, seed=2)
    alone = ratio(fast, "tokens", "seconds"), ratio(slow, "tokens", "seconds")
    assert alone[0].overlaps(alone[1])
    together = paired_ratio(fast, slow, "tokens", "seconds")
    assert together.low > 1.0
    assert together.value == pytest.approx(94 / 90, rel=0.02)


def test_pairs_are_made_by_prompt_not_by_place() -> None:
    one = rows(90, noise=0)
    assert paired_ratio(one, one[::-1], "tokens", "seconds") == Estimate(1.0, 1.0, 1.0)


def test_requests_of_one_prompt_do_not_narrow_the_interval() -> None:
    once = rows(90, prompts=8)
    assert ratio(once * 10, "tokens", "seconds").half_width == pytest.approx(
        ratio(once, "tokens", "seconds").half_width, rel=1e-3
    )


def test_too_few_prompts_are_refused() -> None:
    with pytest.raises(AerieError) as caught:
        ratio(rows(90, prompts=3), "tokens", "seconds")
    assert caught.value.kind.code == "report-too-few-requests"


def test_identical_requests_have_no_width() -> None:
    same = [{"prompt": p, "tokens": 10, "seconds": 2.0} for p in range(6)]
    assert ratio(same, "tokens", "seconds") == Estimate(5.0, 5.0, 5.0)


@pytest.mark.parametrize(("again", "seen"), [(90.0, False), (86.0, True)])
def test_drift(again: float, seen: bool) -> None:
    found = drift(rows(90, seed=1, noise=0.01), rows(again, seed=2, noise=0.01))
    assert found.seen is seen
    assert found.size == pytest.approx(1 - again / 90, abs=0.01)


def test_drift_widens_a_comparison() -> None:
    moved = Drift(Estimate(0.97, 0.96, 0.98))
    wide = moved.widen(Estimate(1.02, 1.01, 1.03))
    assert wide.low < 1.0 < wide.high
    assert wide.value == 1.02
    assert Drift(Estimate(5.6, 3.7, 8.1)).widen(wide).low > 0


def test_acceptance_of_shorter_chains() -> None:
    histogram = [10, 20, 30, 40]  # of 100 verifies with 3 steps
    assert acceptance.survival(histogram) == [0.9, 0.7, 0.4]
    assert acceptance.conditional(histogram) == pytest.approx([0.9, 0.7 / 0.9, 0.4 / 0.7])
    assert acceptance.accept_length(histogram, 0) == 1.0
    assert acceptance.accept_length(histogram, 2) == pytest.approx(2.6)
    assert acceptance.accept_length(histogram, 3) == pytest.approx(3.0)


def verified(easy: list[bool], steps: int) -> list[int]:
    """Verifies by accepted drafts, of a text whose tokens are easy to draft or not, whatever the position."""
    histogram, at = [0] * (steps + 1), 0
    while at + steps < len(easy):
        accepted = 0
        while accepted < steps and easy[at + accepted]:
            accepted += 1
        histogram[accepted] += 1
        at += accepted + 1
    return histogram


def test_runs_of_easy_text_are_learnt_from_the_shorter_chains() -> None:
    source, easy = random.Random(7), [True]
    for _ in range(60_000):
        easy.append(source.random() < (0.93 if easy[-1] else 0.4))
    requests = [{"prompt": p, "histogram": verified(easy[p * 3000 : (p + 1) * 3000], 10)} for p in range(20)]
    truth = {steps: acceptance.accept_length(verified(easy, steps), steps) for steps in range(1, 11)}
    alone = acceptance.accept_lengths(requests, 10)
    while not requests[0]["histogram"][-1]:  # as SGLang gives it: no zeros at the end
        requests[0]["histogram"].pop()
    learnt = acceptance.accept_lengths(requests, 10, {1: truth[1]})
    assert max(abs(alone[k].value / truth[k] - 1) for k in truth) > 0.1
    for steps in truth:
        assert learnt[steps].value == pytest.approx(truth[steps], rel=0.02)
        assert learnt[steps].low < learnt[steps].value < learnt[steps].high


def test_a_chain_whose_positions_get_worse_is_not_taken_for_runs() -> None:
    source, shares = random.Random(5), (0.75, 0.6, 0.5, 0.4, 0.3)

    def histogram(steps: int) -> list[int]:
        counts = [0] * (steps + 1)
        for _ in range(20_000):
            counts[next((j for j in range(steps) if source.random() >= shares[j]), steps)] += 1
        return counts

    longest = histogram(5)
    truth = {steps: acceptance.accept_length(histogram(steps), steps) for steps in (1, 2)}
    assert acceptance.learnt_runs(longest, truth) < 0.1
    assert acceptance.learnt_runs(longest, {}) == 0.0
    assert acceptance.learnt_runs([10, 0, 0], {1: 1.0}) == 0.0  # nothing tells the two apart


def test_accept_lengths_have_intervals_that_grow_with_the_chain() -> None:
    source = np.random.default_rng(3)
    requests = []
    for prompt in range(20):
        counts = source.multinomial(60, [0.3, 0.25, 0.25, 0.2])
        requests.append({"prompt": prompt, "histogram": counts.tolist()})
    total = np.sum([r["histogram"] for r in requests], axis=0).tolist()
    found = acceptance.accept_lengths(requests, 3)
    for steps in (1, 2, 3):
        assert found[steps].value == pytest.approx(acceptance.accept_length(total, steps))
        assert found[steps].low < found[steps].value < found[steps].high
    assert found[1].half_width < found[3].half_width


def test_a_clockwork_pair_is_predicted() -> None:
    """Real control flow on made tables: a pair like the CPU engine's, from its three-step histogram."""
    sys.path.insert(0, str(TREE / "tests" / "cpu_engine"))
    import predict

    size, source = 1009, random.Random(3)
    ring = list(range(size))
    wrong = [source.sample(ring, int(size * share)) for share in (0.2, 0.3, 0.5)]
    pair = predict.from_tables(
        {
            "successor": [*ring[1:], 0, 0],
            "wrong": wrong,
            "ring": ring,
            "starts": [0],
            "eos": size,
            "words": {},
            "byte_ids": list(range(256)),
        }
    )
    lasts = source.sample(ring, 40)
    long = predict.predict_all(pair, lasts, 64, 3).histogram
    for steps in (1, 2, 3):
        truth = predict.predict_all(pair, lasts, 64, steps).accept_length_drafts
        assert acceptance.accept_length(long, steps) == pytest.approx(truth, rel=0.03)


def test_a_line_is_found_with_its_uncertainty() -> None:
    source = np.random.default_rng(1)
    x = np.arange(1, 9)
    line = fit_line(x, 5 + 2 * x + source.normal(0, 0.1, 8), [0.1] * 8)
    assert abs(line.slope - 2) < 3 * line.slope_sigma < 0.2
    assert abs(line.at_zero - 5) < 3 * line.at_zero_sigma


def test_points_off_the_line_raise_the_uncertainty() -> None:
    straight = fit_line([1, 2, 3, 4], [1, 2, 3, 4], [0.01] * 4)
    bent = fit_line([1, 2, 3, 4], [1, 2.5, 3.2, 3.5], [0.01] * 4)
    assert bent.slope_sigma > 5 * straight.slope_sigma


def test_one_point_is_no_line() -> None:
    with pytest.raises(ValueError, match="two different"):
        fit_line([2, 2], [1, 1], [0.1, 0.1])


def test_cycle_cost_answers_with_what_was_measured() -> None:
    cost = fit_cycles([CyclePoint(1, 0.020, 1e-4), CyclePoint(10, 0.040, 1e-4), CyclePoint(4, 0.031, 1e-4)])
    assert cost.at(4) == (0.031, 1e-4)
    between, sigma = cost.at(7)
    assert between == pytest.approx((0.031 + 0.040) / 2)
    assert sigma > 1e-4


def test_estimates_survive_json() -> None:
    one = Estimate(1.31, 1.27, 1.35)
    assert Estimate.from_dict(json.loads(json.dumps(one.as_dict()))) == one
    assert str(one) == "1.31 [1.27, 1.35]"
