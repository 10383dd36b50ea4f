"""Every check alone: one fault in an otherwise right pair, and the code that it must give."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from ansible.module_utils.aerie.draft.check import check
from ansible.module_utils.aerie.draft.checks import CHECKS
from ansible.module_utils.aerie.errors import AerieError
from draft_made import (
    D2T,
    DEEPSEEK,
    DRAFT_VOCAB,
    HIDDEN,
    LLAMA8,
    VOCAB,
    draft_config,
    draft_tensors,
    problems,
    report,
    warnings,
)

GOOD = {
    "ids": [3, 31, 59],
    "training_layers": (2, 30, 58),
    "num_steps": 2,
    "eagle_topk": 1,
    "num_draft_tokens": 3,
}


def judged(tmp_path, release="0.5.23", **changes):
    return report(tmp_path, release, **{**GOOD, **changes})


def config(**changes):
    return {"config": draft_config([3, 31, 59], **changes)}


def tensors(**changes):
    return {"tensors": draft_tensors(**changes)}


def test_a_right_pair_has_nothing_to_say(tmp_path):
    result = judged(tmp_path)
    assert problems(result) == []
    assert warnings(result) == []
    assert result.error() is None


FAULTS = [
    ({"algorithm": "EAGLE"}, "algorithm-mismatch"),
    ({"algorithm": "STANDALONE"}, "algorithm-mismatch"),
    ({"config": {**DEEPSEEK, "architectures": ["LlamaForCausalLMEagle"]}}, "algorithm-mismatch"),
    ({"release": "0.4.4"}, "release-without-eagle3"),
    ({"release": "0.5.4"}, "target-cannot-capture"),
    ({"target": {**DEEPSEEK, "architectures": ["BertModel"]}}, "target-cannot-capture"),
    (config(architectures=["Eagle3Speculator"], transformer_layer_config={}), "draft-architecture-unknown"),
    (config(architectures=["Eagle3LlamaForCausalLM"]), "draft-architecture-unknown"),
    ({"config": draft_config(eagle_aux_hidden_state_layer_ids=[3, 31, 59])}, "ids-misplaced"),
    ({"ids": []}, "ids-invalid"),
    ({"ids": "2,30,58"}, "ids-invalid"),
    ({"ids": [2, 30.0, 58]}, "ids-invalid"),
    ({"ids": [0, 31, 59]}, "ids-embedding"),
    ({"ids": [3, 31, 61]}, "ids-out-of-range"),
    ({"ids": [3, 31, 31]}, "ids-duplicated"),
    ({"ids": [2, 30, 58]}, "wrong-layers"),
    ({"training_layers": (30, 2, 58)}, "training-not-ascending"),
    ({"training_layers": (2, 30, 61)}, "training-invalid"),
    ({"training_layers": (2, 2, 58)}, "training-invalid"),
    ({"training_layers": ()}, "training-invalid"),
    ({"training_layers": (2, 30, 60)}, "training-unspeakable"),
    (config(eagle_config={"use_aux_hidden_state": False}), "use-aux-off"),
    (config(num_aux_hidden_states=4), "states-count"),
    (tensors(fc__weight=("BF16", [HIDDEN, 2 * HIDDEN], None)), "fc-width"),
    (tensors(fc__weight=("BF16", [HIDDEN + 1, 3 * HIDDEN], None)), "fc-height"),
    (tensors(fc__weight=...), "fc-missing"),
    ({"ids": [3, 59]}, "fc-width"),
    ({"target": {**DEEPSEEK, "hidden_size": 4096}}, "hidden-size"),
    (config(target_hidden_size=4096), "target-hidden-size"),
    (config(target_hidden_size=None), "target-hidden-size"),
    (config(vocab_size=VOCAB + 1), "vocab-size"),
    (config(draft_vocab_size=...), "draft-vocab-missing"),
    (config(draft_vocab_size=VOCAB + 1), "draft-vocab-size"),
    (config(tie_word_embeddings=True), "draft-vocab-size"),
    (tensors(lm_head__weight=...), "lm-head-missing"),
    (tensors(lm_head__weight=("BF16", [DRAFT_VOCAB + 1, HIDDEN], None)), "lm-head-rows"),
    (tensors(d2t=...), "d2t-missing"),
    (tensors(d2t=("I64", [DRAFT_VOCAB - 1], D2T[:-1])), "d2t-length"),
    (tensors(d2t=("BF16", [DRAFT_VOCAB], None)), "d2t-unreadable"),
    (tensors(d2t=("I64", [DRAFT_VOCAB], [*D2T[:-1], VOCAB])), "d2t-range"),
    (tensors(d2t=("I64", [DRAFT_VOCAB], [*D2T[:-1], D2T[-2] - 1])), "d2t-not-increasing"),
    (tensors(d2t=("I64", [DRAFT_VOCAB], [0] * DRAFT_VOCAB)), "d2t-against-t2d"),
    (tensors(d2t=("I64", [DRAFT_VOCAB], [0] * DRAFT_VOCAB), t2d=...), "d2t-zero"),
    (config(num_hidden_layers=2, architectures=["Eagle3DeepseekV2ForCausalLM"]), "draft-layer-count"),
    (tensors(midlayer__self_attn__q_proj__weight=...), "draft-layer-missing"),
    ({"num_steps": 2, "eagle_topk": None, "num_draft_tokens": None}, "steps-partial"),
    ({"eagle_topk": None}, "steps-partial"),
    ({"num_draft_tokens": 24}, "draft-tokens-forced"),
    ({"num_steps": 0, "num_draft_tokens": 1}, "steps-too-small"),
    ({"eagle_topk": 2, "num_draft_tokens": 8}, "draft-tokens-too-many"),
    ({"env": {"SGLANG_SIMULATE_ACC_LEN": "2.5"}}, "acceptance-simulated"),
    ({"env": {"SIMULATE_ACC_LEN": "2"}}, "acceptance-simulated"),
    ({"accept_threshold_single": 0.9}, "acceptance-lossy"),
    ({"accept_threshold_acc": 0.9}, "acceptance-lossy"),
    (config(max_position_embeddings=2048), "draft-context"),
    ({"context_length": 8192}, "draft-context"),
    ({"quantization": "awq"}, "draft-quantization"),
    (
        {"quantization": "awq", "draft_quantization": "unquant", "release": "0.5.6.post2"},
        "draft-quantization",
    ),
]


@pytest.mark.parametrize(
    ("change", "code"), FAULTS, ids=[f"{i}-{code}" for i, (_c, code) in enumerate(FAULTS)]
)
def test_problem(tmp_path, change, code):
    result = judged(tmp_path, **change)
    assert code in problems(result)
    finding = next(found for found in result.problems if found.code == code)
    assert all([finding.what, finding.why, finding.fix, finding.source])


@pytest.mark.parametrize(
    ("change", "code"), FAULTS, ids=[f"{i}-{code}" for i, (_c, code) in enumerate(FAULTS)]
)
def test_an_accepted_problem_becomes_a_warning(tmp_path, change, code):
    result = judged(tmp_path, accept=frozenset({code}), **change)
    assert code not in problems(result)
    assert code in warnings(result)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"ids": None, "training_layers": (1, 29, 57)}, "ids-missing"),
        ({"config": draft_config(eagle_config={"eagle_aux_hidden_state_layer_ids": None})}, "ids-null"),
        ({"ids": [59, 3, 31]}, "ids-unordered"),
        ({"training_layers": None}, "layers-unproven"),
        ({"release": "0.5.24"}, "release-newer-than-rules"),
        (config(torch_dtype="float16"), "dtype-differs"),
        (
            {"context_length": 8192, "env": {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}},
            "draft-context-overridden",
        ),
        ({"quantization": "fp8"}, "draft-quantization-inherited"),
        (
            {
                "release": "0.5.6.post2",
                "cuda_graphs": False,
                "config": draft_config(
                    eagle_config={
                        "use_aux_hidden_state": False,
                        "eagle_aux_hidden_state_layer_ids": [2, 30, 58],
                    }
                ),
            },
            "use-aux-ignored",
        ),
    ],
)
def test_warning(tmp_path, change, code):
    result = judged(tmp_path, **change)
    assert code in warnings(result)
    assert code not in problems(result)


@pytest.mark.parametrize(
    "change",
    [
        {"ids": None, "training_layers": (1, 29, 57)},
        {"ids": [59, 3, 31]},
        {"num_steps": None, "eagle_topk": None, "num_draft_tokens": None},
        {"num_steps": 2, "eagle_topk": 2, "num_draft_tokens": 7},
        {"env": {"SGLANG_SIMULATE_ACC_LEN": "-1"}},
        {"accept_threshold_single": 1.0},
        {"context_length": 2048},
        {"quantization": "awq", "draft_quantization": "unquant"},
        {"quantization": "modelopt_fp4", **config(architectures=["Eagle3DeepseekV2ForCausalLM"])},
        {"quantization": "awq", **config(quantization_config={"quant_method": "awq"})},
        {**config(draft_vocab_size=None), **tensors(lm_head__weight=..., d2t=..., t2d=...)},
        config(target_hidden_size=HIDDEN),
        config(max_position_embeddings=1024, rope_scaling={"rope_type": "linear", "factor": 4}),
        tensors(t2d=...),
        {"algorithm": "eagle3".upper()},
    ],
)
def test_no_false_alarm(tmp_path, change):
    assert problems(judged(tmp_path, **change)) == []


OLD = {"release": "0.5.11", "ids": [2, 30, 58]}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (
            config(num_hidden_layers=2, eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 30, 58]}),
            "draft-layer-count",
        ),
        (
            tensors(
                midlayer__self_attn__q_proj__weight=...,
                layers__0__self_attn__q_proj__weight=("BF16", [4], None),
            ),
            "draft-layer-name",
        ),
        (
            {
                "ids": [2, 20, 30, 58],
                "training_layers": (2, 20, 30, 58),
                **tensors(fc__weight=("BF16", [HIDDEN, 4 * HIDDEN], None)),
            },
            "fc-three-states",
        ),
        (config(architectures=["Eagle3DeepseekV2ForCausalLM"]), "draft-architecture-unknown"),
    ],
)
def test_limits_up_to_0_5_11(tmp_path, change, code):
    assert problems(judged(tmp_path, **OLD)) == []
    assert code in problems(judged(tmp_path, **{**OLD, **change}))


def test_old_releases_take_no_ids(tmp_path):
    """Up to 0.4.8.post1 llama captures its default; on 8 layers these are the outputs of 1, 3, 4."""
    change = {"target": LLAMA8, "release": "0.4.8.post1", "training_layers": (1, 3, 4), "ids": [1, 3, 4]}
    assert problems(judged(tmp_path, **change)) == []
    other = judged(tmp_path, **{**change, "ids": [1, 3, 5], "training_layers": (1, 3, 5)})
    assert {"ids-ignored", "training-unspeakable", "wrong-layers"} <= set(problems(other))


def test_marked_layers_that_pile_up_are_a_problem(tmp_path):
    target = {**DEEPSEEK, "architectures": ["Qwen3MoeForCausalLM"]}
    result = judged(tmp_path, "0.5.9", target=target, ids=[2, 30, 58])
    assert {"layers-pile-up", "graph-captures-other-layers"} <= set(problems(result))
    assert "layers-pile-up" not in problems(
        judged(tmp_path, "0.5.9", target=target, ids=[2, 30, 58], cuda_graphs=False)
    )


def test_a_file_that_is_cut_off(tmp_path):
    result = judged(tmp_path)
    file = tmp_path / "draft" / "model.safetensors"
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size - 1)
    again = check(result.case.settings)
    assert "weights-incomplete" in problems(again)
    assert "cut off" in again.problems[0].why


def test_a_shard_that_is_missing(tmp_path):
    result = judged(tmp_path)
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "target" / "model.safetensors.index.json").write_text(json.dumps(index))
    again = check(result.case.settings)
    assert problems(again) == ["weights-incomplete"]
    assert "model-00002-of-00002.safetensors" in again.problems[0].why


def test_all_problems_are_in_one_error(tmp_path):
    error = judged(tmp_path, ids=[2, 30, 58], eagle_topk=None).error()
    assert error.kind.code == "draft-check-failed"
    assert "2 problems" in error.what
    assert [line.split(":")[0] for line in error.evidence if not line.startswith(" ")] == [
        "wrong-layers",
        "steps-partial",
    ]


def test_an_unreadable_config(tmp_path):
    result = judged(tmp_path)
    (tmp_path / "draft" / "config.json").write_text("{")
    with pytest.raises(AerieError) as caught:
        check(result.case.settings)
    assert caught.value.kind.code == "draft-check-unreadable"


def test_every_check_is_documented():
    assert all(one.__doc__ for one in CHECKS)


def test_every_code_is_in_the_documents():
    """docs/draft-rules.md lists each code with its kind, and no other."""
    root = Path(__file__).resolve().parents[2]
    raised = {}
    for file in sorted((root / "module_utils/aerie/draft").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            kind = getattr(getattr(node, "func", None), "id", "")
            if kind in ("problem", "warning"):
                first = node.args[0]
                for code in [first] if isinstance(first, ast.Constant) else [first.body, first.orelse]:
                    raised[code.value] = kind
    text = (root / "docs/draft-rules.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| `([a-z0-9-]+)` \| (problem|warning) \|", text, re.M)) == raised
