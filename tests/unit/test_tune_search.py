"""The predicted way against made servers whose best chain length is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ansible.module_utils.aerie_reports.estimates import Estimate
from ansible.module_utils.aerie_reports.predict import best, regret
from ansible.module_utils.aerie_reports.search import Measured, allowance, next_length, outlook
from tune_made import World

LENGTHS = list(range(1, 11))
CHAT = (0.75, 0.68, 0.6, 0.55, 0.5, 0.45, 0.4, 0.35, 0.3, 0.3)
CODE = (0.92, 0.9, 0.88, 0.87, 0.86, 0.85, 0.84, 0.83, 0.82, 0.81)


def linear(base: float, draft: float, token: float) -> Callable[[int], float]:
    """A dense target: each token costs the same."""
    return lambda k: base + token if k == 0 else base + 0.002 + draft * k + token * (k + 1)


def experts(base: float, draft: float, token: float) -> Callable[[int], float]:
    """A mixture of experts: the first tokens load more new experts than the later ones."""
    return lambda k: base + token if k == 0 else base + 0.002 + draft * k + 3 * token * (k + 1) ** 0.6


def sweep(world: World, *, exhaustive: bool = False) -> dict[int, Measured]:
    """Start what the search names until it names nothing."""
    measured: dict[int, Measured] = {}
    while True:
        steps = next_length(LENGTHS, measured, exhaustive=exhaustive, baseline=world.baseline())
        if steps is None:
            return measured
        assert steps not in measured
        measured[steps] = world.measure(steps)


def found(world: World, measured: dict[int, Measured]) -> tuple[int, dict[int, Estimate]]:
    rates = {0: world.baseline(), **{steps: one.rate for steps, one in measured.items()}}
    return best(rates)[0], rates


WORLDS = {
    "chat, dense": World(CHAT, linear(0.018, 0.0006, 0.0004)),
    "chat, dense, noisy": World(CHAT, linear(0.018, 0.0006, 0.0004), noise=0.05),
    "chat, verify dear": World(CHAT, linear(0.018, 0.0015, 0.002)),
    "chat, experts": World(CHAT, experts(0.018, 0.0006, 0.0004)),
    "chat, experts, verify dear": World(CHAT, experts(0.018, 0.0015, 0.002)),
    "code, dense: the longest wins": World(CODE, linear(0.018, 0.0006, 0.0004)),
    "code, verify dear": World(CODE, linear(0.018, 0.0015, 0.002), noise=0.03),
    "a flat top: many tie": World(CODE, linear(0.010, 0.0013, 0.0005), noise=0.03),
    "a useless draft: off": World((0.05,) * 10, linear(0.018, 0.0006, 0.0004), spread=0.01),
    "drafting too dear: off": World(CHAT, linear(0.018, 0.02, 0.006)),
}


@pytest.mark.parametrize("name", WORLDS)
def test_the_optimum_is_found_with_two_fifths_of_the_starts(name: str) -> None:
    world = WORLDS[name]
    truth = {steps: world.rate(steps) for steps in [0, *LENGTHS]}
    optimum = max(truth, key=lambda steps: truth[steps])
    measured = sweep(world)
    assert len(measured) <= 0.4 * len(LENGTHS)
    chosen, rates = found(world, measured)
    within = rates[chosen].low <= truth[optimum] <= rates[chosen].high
    assert chosen == optimum or within, (
        f"chose {chosen}, {optimum} is best, regret {regret(chosen, truth):.2%}"
    )
    assert regret(chosen, truth) < 0.02


@pytest.mark.parametrize("name", ["a useless draft: off", "drafting too dear: off"])
def test_speculation_off_is_said(name: str) -> None:
    world = WORLDS[name]
    assert found(world, sweep(world))[0] == 0


@pytest.mark.parametrize("name", ["chat, dense", "chat, experts", "code, verify dear"])
def test_predictions_hold_what_they_promise(name: str) -> None:
    world = WORLDS[name]
    predictions = outlook(sweep(world), LENGTHS).predictions
    for steps in LENGTHS:
        one = predictions[steps]
        assert one.accept_length.value == pytest.approx(world.length(steps), rel=0.05)
        assert one.rate.value == pytest.approx(world.rate(steps), rel=0.06)
        assert one.rate.low < one.rate.value < one.rate.high


def test_what_a_shorter_chain_gained_changes_the_prediction_of_the_others() -> None:
    def ran(steps: int, histogram: list[int]) -> Measured:
        verifies = sum(histogram)
        tokens = 1 + sum(n * (a + 1) for a, n in enumerate(histogram))
        rows = [
            {"prompt": p, "tokens": tokens, "seconds": 0.1 + 0.01 * verifies + 0.001 * p, "ttft": 0.1}
            for p in range(6)
        ]
        return Measured(steps, rows, [{"prompt": p, "histogram": histogram} for p in range(6)], 1.0)

    longest = ran(4, [40, 10, 10, 10, 60])
    first_positions = 1 + (10 + 2 * 80) / 130
    as_counted = outlook({4: longest, 1: ran(1, [40, 90])}, [1, 2, 4]).acceptance[2].value
    in_runs = outlook({4: longest, 1: ran(1, [40, 160])}, [1, 2, 4]).acceptance[2].value
    assert as_counted == pytest.approx(first_positions)
    assert in_runs == pytest.approx(430 / 180)  # tokens and verifies of two steps, counted by hand


def test_the_exhaustive_way_measures_all() -> None:
    assert sorted(sweep(WORLDS["chat, dense"], exhaustive=True)) == LENGTHS


def test_the_longest_comes_first_and_then_the_shortest() -> None:
    world = WORLDS["chat, dense"]
    assert next_length(LENGTHS, {}) == 10
    assert next_length(LENGTHS, {10: world.measure(10)}) == 1


def test_a_release_without_acceptance_by_position_is_measured_exhaustively() -> None:
    world = WORLDS["chat, dense"]
    blind = world.measure(10)
    measured = {10: Measured(10, blind.rows, [], 1.0)}
    order = []
    while (steps := next_length(LENGTHS, measured)) is not None:
        order.append(steps)
        measured[steps] = Measured(steps, world.measure(steps).rows, [], 1.0)
    assert order == list(range(9, 0, -1))


def test_what_failed_is_not_tried_again() -> None:
    world = WORLDS["chat, dense"]
    measured: dict[int, Measured] = {}
    failed = [10]
    starts = 1
    while (steps := next_length(LENGTHS, measured, failed)) is not None:
        assert steps not in failed
        if steps == 1:
            failed.append(1)
        else:
            measured[steps] = world.measure(steps)
        starts += 1
    assert 9 in measured
    assert starts <= 4


def test_a_few_lengths_are_all_measured() -> None:
    assert allowance([1, 2, 3]) == 3
    assert allowance([0, 1, 2]) == 2
    assert allowance(LENGTHS) == 4


def test_of_a_tie_zero_steps_is_named_too() -> None:
    rates = {0: Estimate(100, 97, 103), 2: Estimate(101, 98, 104), 5: Estimate(80, 78, 82)}
    assert best(rates) == (2, [0])
    assert best({0: Estimate(100, 99, 101), 3: Estimate(100, 99, 101)})[0] == 0
