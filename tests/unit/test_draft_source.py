"""Confirming rules from source: small trees written the way the releases are."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from ansible.module_utils.aerie.draft.source import SourceTree
from ansible.module_utils.aerie.draft.source_graph import graph_keeps_ids
from ansible.module_utils.aerie.draft.source_method import CannotInterpret, interpret
from draft_made import KIMI, problems, report, warnings

SETS = """
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        if not self.pp_group.is_last_rank:
            return
        if layer_ids is None:
            self.capture_aux_hidden_states = True
            num_layers = self.config.num_hidden_layers
            self.model.layers_to_capture = [2, num_layers // 2, num_layers - 3]
        else:
            self.capture_aux_hidden_states = True
            EXPLICIT
"""
PLUS_ONE = "self.model.layers_to_capture = [val + 1 for val in layer_ids]"
CONDITIONAL = f"""if layer_ids and layer_ids[0] == 1:
                {PLUS_ONE}
            else:
                self.model.layers_to_capture = list(layer_ids)"""
DEEPSEEK = """
class DeepseekV2ForCausalLM(nn.Module):
    SETS

class DeepseekV3ForCausalLM(DeepseekV2ForCausalLM):
    pass

EntryClass = [DeepseekV2ForCausalLM, DeepseekV3ForCausalLM]
"""
KIMI_BARE = """
from sglang.srt.models.deepseek_v2 import DeepseekV3ForCausalLM

class KimiK25ForConditionalGeneration(nn.Module):
    def __init__(self, config):
        self.language_model = DeepseekV3ForCausalLM(config.text_config)

EntryClass = [KimiK25ForConditionalGeneration]
"""
KIMI_DELEGATES = KIMI_BARE.replace(
    "\nEntryClass",
    """
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        if not hasattr(self.language_model, "set_eagle3_layers_to_capture"):
            raise AttributeError("language_model does not support EAGLE3")
        self.language_model.set_eagle3_layers_to_capture(layer_ids)

EntryClass""",
)
FLAGGED = """
class Qwen3MoeModel(nn.Module):
    def set_eagle3_layers_to_capture(self, layers_to_capture):
        self.layers_to_capture = layers_to_capture
        for layer_id in self.layers_to_capture:
            setattr(self.layers[layer_id], "_is_layer_to_capture", True)

class Qwen3MoeForCausalLM(nn.Module):
    def __init__(self, config):
        self.model = Qwen3MoeModel(config)

    def set_eagle3_layers_to_capture(self, layer_ids=None):
        if layer_ids is None:
            num_layers = self.config.num_hidden_layers
            self.model.set_eagle3_layers_to_capture([2, num_layers // 2, num_layers - 3])
        else:
            self.model.set_eagle3_layers_to_capture([val + 1 for val in layer_ids])

EntryClass = Qwen3MoeForCausalLM
"""
BUGGY_GRAPHS = """
class CudaGraphRunner:
    def __init__(self):
        self.model_runner.model.set_eagle3_layers_to_capture()
"""
# 0.4.9 to 0.5.10.post1: the ids come after the graphs.
LATE = """
class ModelRunner:
    def initialize(self):
        ids = eagle_config["eagle_aux_hidden_state_layer_ids"]
        self.init_device_graphs()
        self.model.set_eagle3_layers_to_capture(ids)
"""
# 0.5.11 to 0.5.13
EARLY = """
class ModelRunner:
    def initialize(self):
        ids = eagle_config["eagle_aux_hidden_state_layer_ids"]
        self.init_aux()
        self.init_device_graphs()

    def init_aux(self):
        self.model.set_eagle3_layers_to_capture(ids)
"""
# 0.5.16 on: another object calls the steps.
SPLIT = """
class ModelRunner:
    def initialize(self):
        ids = eagle_config["eagle_aux_hidden_state_layer_ids"]

    def init_backends(self):
        configure_aux_hidden_state_capture(model=self.model)

    def init_cuda_graphs(self):
        self.init_decode_cuda_graph()
"""


def tree(
    path: Path,
    *,
    release="0.5.12",
    explicit=PLUS_ONE,
    kimi=KIMI_DELEGATES,
    runner=EARLY,
    graphs="",
    qwen=FLAGGED,
) -> Path:
    models, executor = path / "sglang/srt/models", path / "sglang/srt/model_executor"
    models.mkdir(parents=True)
    executor.mkdir(parents=True)
    (path / "sglang/version.py").write_text(f'__version__ = "{release}"\n')
    (models / "deepseek_v2.py").write_text(
        DEEPSEEK.replace("    SETS", SETS.replace("EXPLICIT", explicit)), encoding="utf-8-sig"
    )
    (models / "kimi_k25.py").write_text(kimi)
    (models / "qwen3_moe.py").write_text(qwen)
    (executor / "model_runner.py").write_text(runner)
    (executor / "cuda_graph_runner.py").write_text(graphs)
    return path


def test_the_rule_is_read_through_inheritance_and_delegation(tmp_path):
    source = SourceTree(tree(tmp_path / "s", explicit=CONDITIONAL))
    for name in ("DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration"):
        assert source.capture(name, [2, 30, 58], 61).indices == [2, 30, 58]
        assert source.capture(name, [1, 29, 57], 61).indices == [2, 30, 58]
        assert source.capture(name, None, 61).indices == [2, 30, 58]
    assert source.release() == "0.5.12"


def test_marks_are_seen(tmp_path):
    effect = SourceTree(tree(tmp_path / "s")).capture("Qwen3MoeForCausalLM", [2, 30, 58], 61)
    assert effect.indices == [3, 31, 59]
    assert effect.flags


def test_capture_support(tmp_path):
    source = SourceTree(tree(tmp_path / "s", kimi=KIMI_BARE))
    assert source.supports_capture("DeepseekV3ForCausalLM") is True
    assert source.supports_capture("KimiK25ForConditionalGeneration") is False
    assert source.supports_capture("NotThere") is None


@pytest.mark.parametrize(
    ("runner", "graphs", "expected"),
    [
        (EARLY, "", True),
        (SPLIT, "", True),
        (LATE, "", False),
        (LATE, BUGGY_GRAPHS, False),
        (
            LATE.replace(
                "self.init_device", "self.model.set_eagle3_layers_to_capture()\n        self.init_device"
            ),
            "",
            False,
        ),
        (EARLY, BUGGY_GRAPHS, False),
        (LATE, BUGGY_GRAPHS.replace("capture()", "capture(self.model_runner.ids)"), True),
    ],
)
def test_order_of_ids_and_graphs(tmp_path, runner, graphs, expected):
    assert graph_keeps_ids(tree(tmp_path / "s", runner=runner, graphs=graphs) / "sglang") is expected


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "self.model.layers_to_capture = magic(layer_ids)",
        "self.model.layers_to_capture = layer_ids if self.flag else []",
        "for i in layer_ids: self.model.layers_to_capture.append(i)",
        "raise ValueError()",
    ],
)
def test_what_is_not_understood_is_not_guessed(body):
    function = ast.parse(f"def set_eagle3_layers_to_capture(self, layer_ids=None):\n    {body}\n").body[0]
    with pytest.raises(CannotInterpret):
        interpret(function, [1, 2, 3], 61)


def basis(result):
    return set(result.as_result()["basis"].values())


def test_rules_are_confirmed(tmp_path):
    result = report(
        tmp_path, "0.5.12", ids=[2, 30, 58], training_layers=(2, 30, 58), site_packages=tree(tmp_path / "s")
    )
    assert problems(result) == warnings(result) == []
    assert basis(result) == {"confirmed"}


def test_without_a_tree_they_are_rules(tmp_path):
    assert basis(report(tmp_path, "0.5.12", ids=[2, 30, 58])) == {"rule"}


def test_the_source_is_believed_where_it_differs(tmp_path):
    source = tree(tmp_path / "s", explicit=CONDITIONAL)  # says 0.5.12, reads ids as 0.5.13 does
    result = report(tmp_path, "0.5.12", ids=[2, 30, 58], training_layers=(2, 30, 58), site_packages=source)
    assert result.as_result()["basis"]["layer_ids"] == "contradicted"
    assert result.as_result()["captured"]["eager"]["output_of_layer"] == [1, 29, 57]
    assert problems(result) == ["wrong-layers"]
    assert "rule-contradicted" in warnings(result)
    assert result.as_result()["recommended_ids"] == [3, 31, 59]


def test_a_newer_release_is_judged_by_its_source(tmp_path):
    source = tree(tmp_path / "s", release="0.6.0", explicit=CONDITIONAL)
    result = report(tmp_path, "0.6.0", ids=[3, 31, 59], training_layers=(2, 30, 58), site_packages=source)
    assert problems(result) == []
    assert basis(result) == {"confirmed"}


def test_a_tree_of_another_release(tmp_path):
    result = report(tmp_path, "0.5.12", ids=[2, 30, 58], site_packages=tree(tmp_path / "s", release="0.5.11"))
    assert "source-of-another-release" in problems(result)


def test_a_tree_without_sglang(tmp_path):
    assert "source-missing" in problems(report(tmp_path, "0.5.12", ids=[2, 30, 58], site_packages=tmp_path))


def test_fixes_to_come_stay_rules_on_a_pristine_tree(tmp_path):
    source = tree(tmp_path / "s", release="0.5.9", kimi=KIMI_BARE, runner=LATE, graphs=BUGGY_GRAPHS)
    common = {"target": KIMI, "ids": [2, 30, 58], "training_layers": (2, 30, 58), "site_packages": source}
    bare = report(tmp_path, "0.5.9", **common)
    assert problems(bare) == ["target-cannot-capture"]
    assert bare.as_result()["basis"]["capture_support"] == "confirmed"
    fixed = report(
        tmp_path,
        "0.5.9",
        fixes=frozenset({"kimi_k25_set_layers", "graph_capture_layers"}),
        **common,
    )
    assert problems(fixed) == []
    assert warnings(fixed) == []
    assert fixed.as_result()["basis"] == {
        "capture_support": "rule",
        "layer_ids": "confirmed",
        "default_layers": "confirmed",
        "cuda_graphs": "rule",
    }


def test_fixes_that_are_applied_are_confirmed(tmp_path):
    graphs = BUGGY_GRAPHS.replace("capture()", "capture(self.model_runner.ids)")
    source = tree(tmp_path / "s", release="0.5.9", runner=LATE, graphs=graphs)
    result = report(
        tmp_path,
        "0.5.9",
        target=KIMI,
        ids=[2, 30, 58],
        training_layers=(2, 30, 58),
        site_packages=source,
        fixes=frozenset({"kimi_k25_set_layers", "graph_capture_layers"}),
    )
    assert problems(result) == []
    assert basis(result) == {"confirmed"}
