"""The rules by release and family, as tables."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.module_utils.aerie.draft import layer_ids as rules
from ansible.module_utils.aerie.draft.families import DELEGATED_BY_FIX, FAMILIES, GRAPH_FIX, family_of
from ansible.module_utils.aerie.draft.wiring import graph_keeps_ids, target_rules, wiring
from ansible.module_utils.aerie.release.rules import version_key

ALL = [rules.NO_IDS, rules.PLUS_ONE, rules.PLUS_ONE_IF_FIRST_IS_ONE, rules.AS_IS_IF_THE_END_IS_NAMED]


@pytest.mark.parametrize(
    ("rule", "ids", "expected"),
    [
        (rules.PLUS_ONE, [2, 30, 58], [3, 31, 59]),
        (rules.PLUS_ONE_IF_FIRST_IS_ONE, [2, 30, 58], [2, 30, 58]),
        (rules.PLUS_ONE_IF_FIRST_IS_ONE, [1, 29, 57], [2, 30, 58]),
        (rules.PLUS_ONE_IF_FIRST_IS_ONE, [29, 1, 57], [29, 1, 57]),
        (rules.AS_IS_IF_THE_END_IS_NAMED, [2, 30, 58], [3, 31, 59]),
        (rules.AS_IS_IF_THE_END_IS_NAMED, [2, 30, 61], [2, 30, 61]),
        (rules.NO_IDS, [5, 6, 7], [2, 30, 58]),
    ],
)
def test_rules(rule, ids, expected):
    assert rule.indices(ids, 61) == expected


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.name)
def test_recommended_ids_always_capture_what_was_asked(rule):
    """Whatever is recommended, the rule must lead back to the layers that were asked for."""
    layers = 9
    spoken = 0
    for first in range(-1, layers):
        for second in range(first, layers):
            for third in range(second, layers):
                ids, reason = rules.ids_for(rule, [first, second, third], layers, layers)
                assert (ids is None) == bool(reason)
                if ids is not None:
                    spoken += 1
                    assert rule.indices(ids, layers) == [first + 1, second + 1, third + 1]
    assert spoken >= (1 if rule is rules.NO_IDS else 50)


def test_gpt_oss_can_say_the_last_layer_from_0_5_17_on():
    for release, expected in (("0.5.16", None), ("0.5.17", [2, 17, 35])):
        known = target_rules("GptOssForCausalLM", 36, release, ())
        ids, _reason = rules.ids_for(known.rule, [2, 17, 35], 36, known.last_index)
        assert ids == expected


@pytest.mark.parametrize(
    ("architecture", "first"),
    [
        ("LlamaForCausalLM", "0.4.4.post2"),
        ("Qwen3ForCausalLM", "0.4.9"),
        ("Qwen2ForCausalLM", "0.5.2"),
        ("GptOssForCausalLM", "0.5.1"),
        ("DeepseekV3ForCausalLM", "0.5.4.post2"),
        ("Glm4MoeForCausalLM", "0.5.5"),
        ("MiniMaxM2ForCausalLM", "0.5.5.post1"),
        ("LongcatFlashForCausalLM", "0.5.6"),
        ("KimiK25ForConditionalGeneration", "0.5.10"),
    ],
)
def test_capture_begins_with_a_release(architecture, first):
    family = family_of(architecture)
    major, minor, patch, post = version_key(first)
    before = f"{major}.{minor}.{patch}.post{post - 1}" if post else f"{major}.{minor}.{patch - 1}.post99"
    assert family.era(first) is not None
    assert family.era(before) is None


def test_glm4v_lost_capture():
    assert target_rules("Glm4vForConditionalGeneration", 40, "0.5.4", ()).rule is rules.PLUS_ONE
    lost = target_rules("Glm4vForConditionalGeneration", 40, "0.5.4.post3", ())
    assert lost.rule is None
    assert "lost" in lost.reason


@pytest.mark.parametrize(
    ("release", "keeps"),
    [
        ("0.4.8.post1", True),
        ("0.4.9", False),
        ("0.4.10.post2", False),
        ("0.5.10.post1", False),
        ("0.5.11", True),
    ],
)
def test_graph_bug(release, keeps):
    assert graph_keeps_ids(release, ()) is keeps
    assert graph_keeps_ids(release, {"graph_capture_layers"}) is True


def test_marked_layers_pile_up():
    """Qwen3-MoE marks layers one by one; the marks of the default stay beside the draft's."""
    known = target_rules("Qwen3MoeForCausalLM", 48, "0.5.9", ())
    with_graphs = wiring(known, [1, 23, 44], 48, cuda_graphs=True)
    assert with_graphs.eager == (2, 24, 45)  # these are the default, nothing piles up
    piled = wiring(known, [2, 23, 44], 48, cuda_graphs=True)
    assert piled.eager == (2, 3, 24, 45)
    assert piled.cuda_graph == (2, 24, 45)
    assert piled.piled_up
    assert wiring(known, [2, 23, 44], 48, cuda_graphs=False).eager == (3, 24, 45)


def test_the_default_of_minimax_m3_vl_is_one_later():
    assert target_rules("MiniMaxM3SparseForConditionalGeneration", 60, "0.5.23", ()).default == (3, 31, 58)
    assert target_rules("MiniMaxM3SparseForCausalLM", 60, "0.5.23", ()).default == (2, 30, 57)


def test_tables_are_consistent():
    names = [architecture for family in FAMILIES for architecture in family.architectures]
    assert len(names) == len(set(names))
    for family in FAMILIES:
        since = [version_key(era.since) for era in family.eras]
        assert since == sorted(since)
        assert all(era.source for era in family.eras)


def test_the_fixes_that_the_rules_know_are_in_the_catalogue() -> None:
    """The draft check counts a fix by its name; a name that nothing has would silently count for nothing."""
    place = Path(__file__).parents[2] / "roles" / "sglang_patches" / "files" / "catalogue" / "fixes.yml"
    names = {entry["name"] for entry in yaml.safe_load(place.read_text())}
    assert {GRAPH_FIX, *(one.fix for one in DELEGATED_BY_FIX)} <= names
