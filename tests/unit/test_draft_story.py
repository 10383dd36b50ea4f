"""The story: a 61-layer DeepSeek-V3 target, Kimi-K2.5 around it, and a draft trained on the outputs 2, 30, 58."""

from __future__ import annotations

import pytest
from draft_made import KIMI, problems, report, warnings

TRAINED = (2, 30, 58)
GRAPH_FIX, KIMI_FIX = "graph_capture_layers", "kimi_k25_set_layers"


def layers(result, mode="eager"):
    return result.as_result()["captured"][mode]["output_of_layer"]


def test_right_in_eager_mode_and_wrong_in_graphs_on_0_5_9(tmp_path):
    result = report(tmp_path, "0.5.9", ids=[2, 30, 58], training_layers=TRAINED)
    assert layers(result) == [2, 30, 58]
    assert layers(result, "cuda_graph") == [1, 29, 57]
    assert problems(result) == ["graph-captures-other-layers"]


def test_both_notations_are_given(tmp_path):
    captured = report(tmp_path, "0.5.9", ids=[2, 30, 58]).as_result()["captured"]
    assert captured == {
        "eager": {"loop_index": [3, 31, 59], "output_of_layer": [2, 30, 58]},
        "cuda_graph": {"loop_index": [2, 30, 58], "output_of_layer": [1, 29, 57]},
    }


def test_right_with_the_graph_fix_on_0_5_9(tmp_path):
    result = report(tmp_path, "0.5.9", ids=[2, 30, 58], training_layers=TRAINED, fixes=frozenset({GRAPH_FIX}))
    assert problems(result) == []
    assert layers(result, "cuda_graph") == [2, 30, 58]


def test_without_graphs_0_5_9_is_right_and_proves_nothing_about_production(tmp_path):
    result = report(tmp_path, "0.5.9", ids=[2, 30, 58], training_layers=TRAINED, cuda_graphs=False)
    assert problems(result) == []
    assert "graph-would-capture-other-layers" in warnings(result)


@pytest.mark.parametrize(
    ("release", "fixes", "expected"),
    [
        ("0.5.9", {GRAPH_FIX}, ["target-cannot-capture"]),
        ("0.5.9", {GRAPH_FIX, KIMI_FIX}, []),
        ("0.5.9", {KIMI_FIX}, ["graph-captures-other-layers"]),
        ("0.5.10", {GRAPH_FIX}, []),
        ("0.5.12", set(), []),
    ],
)
def test_kimi_needs_the_delegation_on_0_5_9_alone(tmp_path, release, fixes, expected):
    result = report(
        tmp_path, release, target=KIMI, ids=[2, 30, 58], training_layers=TRAINED, fixes=frozenset(fixes)
    )
    assert problems(result) == expected
    if "target-cannot-capture" in expected:
        assert KIMI_FIX in result.problems[0].fix


@pytest.mark.parametrize(
    ("release", "ids", "expected"),
    [
        ("0.5.12", [2, 30, 58], [2, 30, 58]),
        ("0.5.12", [3, 31, 59], [3, 31, 59]),
        ("0.5.13", [2, 30, 58], [1, 29, 57]),
        ("0.5.13", [3, 31, 59], [2, 30, 58]),
        ("0.5.23", [2, 30, 58], [1, 29, 57]),
        ("0.5.23", [3, 31, 59], [2, 30, 58]),
        ("0.5.12", [1, 29, 57], [1, 29, 57]),
        ("0.5.23", [1, 29, 57], [1, 29, 57]),
    ],
)
def test_the_meaning_of_ids_changed_in_0_5_13(tmp_path, release, ids, expected):
    result = report(tmp_path, release, target=KIMI, ids=ids, training_layers=TRAINED)
    assert layers(result) == layers(result, "cuda_graph") == expected
    assert problems(result) == ([] if expected == list(TRAINED) else ["wrong-layers"])


def test_one_layer_off_is_said_with_the_right_ids(tmp_path):
    finding = report(tmp_path, "0.5.23", ids=[2, 30, 58], training_layers=TRAINED).problems[0]
    assert "off by -1" in finding.why
    assert "[3, 31, 59]" in finding.fix


def test_without_training_layers_nobody_can_know(tmp_path):
    result = report(tmp_path, "0.5.23", ids=[2, 30, 58])
    assert problems(result) == []
    assert warnings(result) == ["layers-unproven"]
    assert "[2, 30, 58]" in result.warnings[0].why
    assert "[1, 29, 57]" in result.warnings[0].why
    assert result.as_result()["recommended_ids"] is None


def test_the_other_convention_is_right_for_drafts_trained_on_1_29_57(tmp_path):
    result = report(tmp_path, "0.5.23", ids=[2, 30, 58], training_layers=(1, 29, 57))
    assert problems(result) == []
    assert problems(report(tmp_path, "0.5.12", ids=[2, 30, 58], training_layers=(1, 29, 57))) == [
        "wrong-layers"
    ]


@pytest.mark.parametrize("release", ["0.5.4.post3", "0.5.9", "0.5.12", "0.5.13", "0.5.23"])
def test_minus_one_is_refused_everywhere(tmp_path, release):
    result = report(tmp_path, release, ids=[-1, 2, 30], fixes=frozenset({GRAPH_FIX}))
    assert "ids-negative" in problems(result)
    trained = report(
        tmp_path, release, ids=[-1, 2, 30], training_layers=(-1, 2, 30), fixes=frozenset({GRAPH_FIX})
    )
    assert {"ids-negative", "training-invalid"} <= set(problems(trained))
    assert trained.as_result()["recommended_ids"] is None


@pytest.mark.parametrize(
    ("release", "training", "expected"),
    [
        ("0.5.9", (2, 30, 58), [2, 30, 58]),
        ("0.5.12", (2, 30, 58), [2, 30, 58]),
        ("0.5.13", (2, 30, 58), [3, 31, 59]),
        ("0.5.23", (1, 29, 57), [1, 29, 57]),
        ("0.5.12", (0, 29, 57), [0, 29, 57]),
        ("0.5.13", (0, 29, 57), None),
        ("0.5.23", (58, 30, 2), None),
        ("0.5.23", (2, 30, 60), None),
    ],
)
def test_recommended_ids(tmp_path, release, training, expected):
    result = report(tmp_path, release, ids=[2, 30, 58], training_layers=training)
    assert result.as_result()["recommended_ids"] == expected
    assert bool(result.as_result()["recommended_ids_reason"]) == (expected is None)


def test_the_output_of_layer_0_cannot_be_said_from_0_5_13_on(tmp_path):
    served = report(tmp_path, "0.5.13", ids=[2, 30, 58], training_layers=(0, 29, 57), serve_ids="recommended")
    assert {"training-unspeakable", "wrong-layers"} <= set(problems(served))
    finding = next(f for f in served.problems if f.code == "training-unspeakable")
    assert "[30, 1, 58]" in finding.why  # out of order it could be said; that is for a person to decide


def test_one_inventory_across_an_upgrade(tmp_path):
    """training_layers is the only thing that a person states; the right ids are written for each release."""
    fixes = frozenset({GRAPH_FIX, KIMI_FIX})
    for release in ("0.5.9", "0.5.12", "0.5.13", "0.5.23"):
        result = report(
            tmp_path,
            release,
            target=KIMI,
            ids=[2, 30, 58],
            training_layers=TRAINED,
            serve_ids="recommended",
            fixes=fixes,
        )
        assert problems(result) == []
        assert layers(result) == layers(result, "cuda_graph") == list(TRAINED)


def test_rewriting_is_said(tmp_path):
    result = report(tmp_path, "0.5.23", ids=[2, 30, 58], training_layers=TRAINED, serve_ids="recommended")
    assert warnings(result) == ["ids-rewritten"]
    assert result.as_result()["served_ids"] == [3, 31, 59]
