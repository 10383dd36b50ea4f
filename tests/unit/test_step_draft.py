"""The draft is judged inside the plan: which ids it serves, what refuses it, and when there is nothing to judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie.instance.step_draft import DraftRefusedError, advice, judge
from draft_made import DEEPSEEK, HIDDEN, draft_config, draft_tensors, write_model


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    target = write_model(tmp_path / "t", DEEPSEEK, {"model.norm.weight": ("BF16", [HIDDEN], None)})
    return {
        "release": {"release": "0.5.23"},
        "model_path": str(target),
        "draft_model_path": str(write_model(tmp_path / "d", draft_config([2, 30, 58]), draft_tensors())),
        "speculative": {"algorithm": "EAGLE3", "num_steps": 2, "eagle_topk": 1, "num_draft_tokens": 3},
        "training_layers": [2, 30, 58],
        "accept_draft_problems": [],
        "arguments": {},
        "environment": {},
    }


def test_the_ids_that_mean_the_training_layers_are_served(settings: dict[str, Any]) -> None:
    report = judge(settings)
    assert report is not None
    assert report.case.recommended == [3, 31, 59]
    assert report.problems == ()


@pytest.mark.parametrize(
    "change",
    [
        {"speculative": {}},
        {"speculative": {"algorithm": "NGRAM"}},
        {"draft_model_path": ""},
        {"release": {}},
        {"release": {"release": ""}},
    ],
)
def test_nothing_to_judge(settings: dict[str, Any], change: dict[str, Any]) -> None:
    assert judge({**settings, **change}) is None


def test_without_training_layers_nobody_can_say_and_that_is_advised(settings: dict[str, Any]) -> None:
    report = judge({**settings, "training_layers": []})
    assert report is not None
    assert report.case.recommended is None
    assert any("sglang_server_training_layers" in line for line in advice(report)), advice(report)


def test_a_problem_refuses_the_run_and_is_told_whole(settings: dict[str, Any], tmp_path: Path) -> None:
    zero = draft_tensors(d2t=("I64", [10], [0] * 10))
    settings["draft_model_path"] = str(write_model(tmp_path / "z", draft_config([2, 30, 58]), zero))
    with pytest.raises(DraftRefusedError) as refused:
        judge(settings)
    result = refused.value.as_result()
    assert result["error"]["code"] == "draft-check-failed"
    codes = [one["code"] for one in result["problems"]]
    assert "d2t-zero" in codes
    accepted = judge({**settings, "accept_draft_problems": codes})
    assert accepted is not None
    assert accepted.problems == ()


def test_fixes_and_the_mode_are_judged_as_the_server_will_have_them(settings: dict[str, Any]) -> None:
    fix = {"set": "fixes", "name": "cuda_graph_aux_capture"}
    report = judge({**settings, "patches": [fix, {"name": "mine"}], "mode": "debug"})
    assert report is not None
    assert report.case.settings.fixes == {"cuda_graph_aux_capture"}
    assert not report.case.settings.cuda_graphs
    report = judge({**settings, "mode": "debug", "debug_cuda_graphs": True})
    assert report is not None
    assert report.case.settings.cuda_graphs


def test_fixes_that_will_be_applied_and_the_modes_graphs_count(settings: dict[str, Any]) -> None:
    """0.5.9 captures the default layers inside CUDA graphs; debug mode has none, and the fix is one of the patches."""
    settings = {**settings, "release": {"release": "0.5.9"}, "mode": "production"}
    fix = {"name": "graph_capture_layers", "set": "fixes"}

    def codes(**changes: Any) -> set[str]:
        report = judge({**settings, "accept_draft_problems": ["graph-captures-other-layers"], **changes})
        assert report is not None
        return {one.code for one in [*report.problems, *report.warnings]}

    assert "graph-captures-other-layers" in codes()
    assert "graph-captures-other-layers" in codes(mode="debug", debug_cuda_graphs=True)
    assert "graph-captures-other-layers" not in codes(mode="debug")
    assert "graph-captures-other-layers" not in codes(patches=[fix])


def test_what_was_built_is_judged_by_its_own_config_and_source(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    served = {"draft": settings["draft_model_path"], "site_packages": str(tmp_path / "site")}
    with pytest.raises(DraftRefusedError) as refused:
        judge(settings, served)
    codes = {one["code"] for one in refused.value.as_result()["problems"]}
    assert "source-missing" in codes  # nothing lies at site_packages
    assert len(codes) > 1  # nor does this draft's config name the ids that mean the training layers
    served["draft"] = str(write_model(tmp_path / "served", draft_config([3, 31, 59]), draft_tensors()))
    with pytest.raises(DraftRefusedError) as refused:
        judge(settings, served)
    assert {one["code"] for one in refused.value.as_result()["problems"]} == {"source-missing"}
