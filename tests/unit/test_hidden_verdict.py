"""From figures to a verdict: every state that a segment can turn out to carry, and what to change for it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.aerie.hidden.page import page
from ansible.module_utils.aerie.hidden.result import comparison_result
from ansible.module_utils.aerie.hidden.verdict import Candidate, decide, tolerance_for, width_verdict

LAYERS = 6
CANDIDATES = [
    Candidate("the embedding", -1),
    *(Candidate(f"the output of layer {n}", n) for n in range(LAYERS)),
    Candidate("the final norm", None),
]
NORM = LAYERS  # stands for the final norm in the lists below


def pair(error: float) -> dict[str, Any]:
    return {
        "error": error,
        "error_90": error,
        "cosine": 1 - error,
        "norm_ratio": 1.0,
        "max_difference": error,
    }


def distance(a: int, b: int, apart: float) -> dict[str, Any]:
    return pair(0.002 if a == b else apart * abs(a - b))


def figures(served: list[int], trained: list[int], apart: float = 0.4, **changes: Any) -> dict[str, Any]:
    """Layers -1 (embedding) to NORM; neighbours are ``apart`` from each other."""
    everything = [-1, *range(LAYERS), NORM]
    same = dict.fromkeys(everything, 0.0)
    return {
        "cross": [[distance(a, b, apart) for b in trained] for a in served],
        "served_to": [
            [pair(same[n]) if n == a else distance(a, n, apart) for n in everything] for a in served
        ],
        "reference_to": [[distance(b, n, apart) for n in everything] for b in trained],
        "shard": [None] * len(served),
        "row_shift": [0] * len(served),
        "extra": {},
        **changes,
    }


CASES = [
    ("right", [1, 3, 5], [1, 3, 5], "match", "outputs of layers 1, 3, 5", ""),
    (
        "one layer early",
        [0, 2, 4],
        [1, 3, 5],
        "shifted",
        "every segment is 1 layer too early",
        "[1, 3, 5] already",
    ),
    (
        "one layer late",
        [2, 4, 5],
        [1, 3, 4],
        "shifted",
        "every segment is 1 layer too late",
        "training_layers: [1, 3, 4]",
    ),
    (
        "one id off",
        [1, 2, 5],
        [1, 3, 5],
        "other-layers",
        "segment 2 carries the output of layer 2; the draft was trained on the output of layer 3",
        "[1, 3, 5] already",
    ),
    ("two swapped", [3, 1, 5], [1, 3, 5], "permuted", "segment 1 carries the states of segment 2", "already"),
    ("trained out of order", [1, 3, 5], [3, 1, 5], "permuted", "segment 1", "not ascending"),
    ("embedding", [-1, 3, 5], [1, 3, 5], "embedding", "segment 1 carries the embedding", "already"),
    ("final norm", [1, 3, NORM], [1, 3, 5], "final-norm", "segment 3 carries the final norm", "already"),
]


@pytest.mark.parametrize(
    ("name", "served", "trained", "state", "sentence", "advice"), CASES, ids=[c[0] for c in CASES]
)
def test_states_that_can_be_named(
    name: str, served: list[int], trained: list[int], state: str, sentence: str, advice: str
) -> None:
    verdict = decide(figures(served, trained), CANDIDATES, 0.05, [1, 3, 5])
    assert verdict.state == state
    assert sentence in verdict.sentence
    assert advice in verdict.next
    assert verdict.matched == (state == "match")
    assert all(one.served is not None and one.trained is not None for one in verdict.segments)


def test_a_neighbour_within_tolerance_is_no_match_when_the_right_layer_fits_better() -> None:
    close = figures([2, 3, 5], [1, 3, 5], apart=0.03)
    assert decide(close, CANDIDATES, 0.05, [1, 3, 5]).segments[0].state == "layer"
    without = {**close, "served_to": [[]] * 3, "reference_to": [[]] * 3}
    assert decide(without, [], 0.05, [1, 3, 5]).matched, "without all-layer lines nobody can tell"


def test_without_layer_lines_it_differs_and_says_how_to_name_it() -> None:
    bare = figures([2, 3, 5], [1, 3, 5], served_to=[[]] * 3, reference_to=[[]] * 3)
    verdict = decide(bare, [], 0.05, [1, 3, 5])
    assert verdict.state == "differs"
    assert verdict.sentence == "segment 1 differs by 40%; the draft was trained on layer 1"
    assert "all_layers: true" in verdict.next


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({"shard": [{"kind": "columns", "of": 8, "rank": 3}, None, None]}, "shard", "shard of rank 3 of 8"),
        ({"shard": [{"kind": "rows turned", "of": 2, "rank": 1}, None, None]}, "shard", "another order"),
        ({"row_shift": [1, 0, 0]}, "token-shift", "one token ahead"),
        ({"row_shift": [-1, 0, 0]}, "token-shift", "one token behind"),
        ({}, "differs", "segment 1 differs"),
    ],
)
def test_states_that_are_no_layer(changes: dict[str, Any], state: str, words: str) -> None:
    unknown = figures([1, 3, 5], [1, 3, 5], **changes)
    unknown["cross"][0][0] = pair(0.9)
    unknown["served_to"][0] = [pair(0.9)] * len(CANDIDATES)
    verdict = decide(unknown, CANDIDATES, 0.05, [1, 3, 5])
    assert (verdict.state, words in verdict.sentence) == (state, True), verdict.sentence
    assert verdict.next


def test_right_states_and_a_draft_that_makes_something_else_of_them() -> None:
    verdict = decide(figures([1, 3, 5], [1, 3, 5], extra={"draft_fc": pair(0.8)}), CANDIDATES, 0.05)
    assert verdict.state == "differs"
    assert "draft_fc" in verdict.sentence
    assert "fc.weight" in verdict.next
    assert decide(figures([1, 3, 5], [1, 3, 5], extra={"draft_fc": pair(0.004)}), CANDIDATES, 0.05).matched


def test_a_few_wrong_rows_are_no_match() -> None:
    mixed = figures([1, 3, 5], [1, 3, 5])
    mixed["cross"][1][1] = {**pair(0.004), "error_90": 0.5}
    assert not decide(mixed, CANDIDATES, 0.05).matched


def test_norms_alone_say_so() -> None:
    norms = figures([1, 3, 5], [1, 3, 5])
    for place in range(3):
        norms["cross"][place][place] = {**pair(0.01), "cosine": None, "max_difference": None}
    assert "only norms were compared" in decide(norms, CANDIDATES, 0.05).sentence


def test_widths() -> None:
    one = width_verdict(256, 768, 3)
    assert one.sentence.startswith("the draft gets one state of width 256; it was trained on 3 states")
    assert "EAGLE3" in one.next
    two = width_verdict(512, 768, 3)
    assert "width 512 together" in two.sentence
    assert "fc.weight" in two.next


@pytest.mark.parametrize(
    ("dtype", "given", "expected"),
    [("bfloat16", None, 0.05), ("float32", None, 0.01), ("", None, 0.05), ("float32", 0.2, 0.2)],
)
def test_tolerance(dtype: str, given: float | None, expected: float) -> None:
    assert tolerance_for(dtype, given) == expected


def result(served: list[int], candidates: list[Candidate]) -> dict[str, Any]:
    found = figures(served, [1, 3, 5])
    if not candidates:
        found.update(served_to=[[]] * 3, reference_to=[[]] * 3)
    details = {
        "tolerance": 0.05,
        "dtype": "bfloat16",
        "prompt_tokens": 20,
        "captured_layers": served,
        "training_layers": [1, 3, 5],
        "candidates": [one.name for one in candidates],
        "figures": found,
    }
    return comparison_result(decide(found, candidates, 0.05, [1, 3, 5]), details)


def test_page_shows_verdict_table_and_matrix_and_needs_nothing_else() -> None:
    html = page({**result([2, 3, 5], CANDIDATES), "instance": "<default>", "release": "0.5.23"})
    assert "segment 1 carries the output of layer 2" in html
    assert html.count("<rect") == 6 * len(CANDIDATES)
    assert "instance &lt;default&gt;" in html
    assert html.count("stroke='#d97706'") == 6  # one nearest state in each column
    for outside in ("<script", "http://", "https://", "@import", "src="):
        assert outside not in html


def test_page_without_layer_lines_says_why_there_is_no_matrix() -> None:
    html = page(result([2, 3, 5], []))
    assert "<svg" not in html
    assert "no matrix" in html
