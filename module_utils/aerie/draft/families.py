"""Which targets capture states for EAGLE-3 in which release, and how they read layer ids. Data only.

Made by interpreting ``set_eagle3_layers_to_capture`` in the wheels of 45 releases from 0.4.4.post1 to 0.5.23
(tests/releases/confirm_draft_rules.py does it again; docs/draft-rules.md holds the table). ``since`` is the first of
those releases that has it. To add a release or a model: run that script, then add an :class:`Era` here.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..release.rules import version_key
from .layer_ids import AS_IS_IF_THE_END_IS_NAMED, NO_IDS, PLUS_ONE, PLUS_ONE_IF_FIRST_IS_ONE, IdRule

FIRST_RELEASE = "0.4.4.post2"  # EAGLE-3 itself: PR #4247
LAST_RELEASE = "0.5.23"  # newest release that the rules were read from
GRAPH_BUG_FIRST = "0.4.9"  # the first release that reads ids has the bug too
GRAPH_BUG_FIXED = "0.5.11"  # PR #22836
USE_AUX_READ = "0.5.8"  # eagle_config.use_aux_hidden_state is not read before
ANY_FC_WIDTH = "0.5.12"  # up to 0.5.11 fc is built for exactly three states
MULTI_LAYER_DRAFTS = "0.5.12"  # up to 0.5.11 num_hidden_layers must be 1 and weights are named midlayer.*
DRAFT_QUANTIZATION_FLAG = "0.5.8"  # --speculative-draft-model-quantization


@dataclass(frozen=True)
class Era:
    """A rule from a release on."""

    since: str
    rule: IdRule
    source: str


@dataclass(frozen=True)
class Family:
    """Targets that share their rules. ``architectures`` as in ``config.json``.

    until: first release without capture, where it was lost again.
    flags_since: layers are marked one by one from here on, and a mark stays. last_layer_since: the output of the last
    layer can be captured. shifted_default: the default is one layer later than everywhere else.
    """

    name: str
    architectures: tuple[str, ...]
    eras: tuple[Era, ...]
    until: str = ""
    flags_since: str = ""
    last_layer_since: str = ""
    shifted_default: bool = False

    def era(self, release: str) -> Era | None:
        """The rule of ``release``; None where the target cannot capture."""
        key = version_key(release)
        if self.until and key >= version_key(self.until):
            return None
        fitting = [era for era in self.eras if version_key(era.since) <= key]
        return fitting[-1] if fitting else None

    def flags(self, release: str) -> bool:
        """Whether layers are marked in ``release``."""
        return bool(self.flags_since) and version_key(release) >= version_key(self.flags_since)

    def last_index(self, release: str, layers: int) -> int:
        """Highest loop index that can be captured on a target of ``layers`` layers."""
        reached = bool(self.last_layer_since) and version_key(release) >= version_key(self.last_layer_since)
        return layers if reached else layers - 1


def _plus(since: str, where: str) -> tuple[Era, ...]:
    return (Era(since, PLUS_ONE, f"srt/models/{where}, first seen in {since}"),)


def _deepseek(since: str, where: str) -> tuple[Era, ...]:
    changed = f"srt/models/{where}, PR #25454, first in 0.5.13"
    return (*_plus(since, where), Era("0.5.13", PLUS_ONE_IF_FIRST_IS_ONE, changed))


FAMILIES: tuple[Family, ...] = (
    Family(
        "llama",
        ("LlamaForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM", "InternLM3ForCausalLM"),
        (
            Era(FIRST_RELEASE, NO_IDS, "srt/models/llama.py, PR #4247, 0.4.4.post2"),
            *_plus("0.4.9", "llama.py"),
        ),
    ),
    Family(
        "llama4-text",
        ("Llama4ForCausalLM",),
        (Era("0.4.5", NO_IDS, "srt/models/llama4.py, 0.4.5"), *_plus("0.4.9", "llama.py")),
    ),
    Family("llama4", ("Llama4ForConditionalGeneration",), _plus("0.4.9", "mllama4.py")),
    Family("ministral3", ("Ministral3ForCausalLM",), _plus("0.5.6.post1", "ministral3.py")),
    Family("teleflm", ("TeleFLMForCausalLM",), _plus("0.5.5.post3", "teleflm.py")),
    Family("iquest-coder", ("IQuestCoderForCausalLM",), _plus("0.5.8", "llama.py")),
    Family("qwen2", ("Qwen2ForCausalLM", "Qwen2_5_VLForConditionalGeneration"), _plus("0.5.2", "qwen2.py")),
    Family("qwen2-moe", ("Qwen2MoeForCausalLM",), _plus("0.5.2", "qwen2_moe.py"), flags_since="0.5.4.post2"),
    Family("qwen3", ("Qwen3ForCausalLM",), _plus("0.4.9", "qwen3.py")),
    Family("qwen3-moe", ("Qwen3MoeForCausalLM",), _plus("0.4.9", "qwen3_moe.py"), flags_since="0.5.4.post2"),
    Family("qwen3-next", ("Qwen3NextForCausalLM",), _plus("0.5.9", "qwen3_next.py"), flags_since="0.5.9"),
    Family(
        "qwen3-vl",
        (
            "Qwen3VLForConditionalGeneration",
            "Qwen3VLMoeForConditionalGeneration",
            "Qwen3_5ForConditionalGeneration",
            "Qwen3_5MoeForConditionalGeneration",
            "InternS1ProForConditionalGeneration",
        ),
        _plus("0.5.11", "qwen3_vl.py"),
    ),
    Family("interns2", ("InternS2PreviewForConditionalGeneration",), _plus("0.5.12", "qwen3_vl.py")),
    Family("interns2-mobius", ("InternS2MobiusForConditionalGeneration",), _plus("0.5.18", "qwen3_vl.py")),
    Family(
        "qwen3-vl-later",
        ("Cosmos3ForConditionalGeneration", "Qwen4ExpForConditionalGeneration"),
        _plus("0.5.20", "qwen3_vl.py"),
    ),
    Family(
        "qwen3.5-text", ("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"), _plus("0.5.22", "qwen3_5_text.py")
    ),
    Family(
        "gpt-oss",
        ("GptOssForCausalLM",),
        (
            *_plus("0.5.1", "gpt_oss.py"),
            Era("0.5.17", AS_IS_IF_THE_END_IS_NAMED, "srt/models/gpt_oss.py, first seen in 0.5.17"),
        ),
        last_layer_since="0.5.17",
    ),
    Family("glm4-moe", ("Glm4MoeForCausalLM",), _plus("0.5.5", "glm4_moe.py")),
    Family("glm4-moe-lite", ("Glm4MoeLiteForCausalLM",), _deepseek("0.5.8", "glm4_moe_lite.py")),
    Family(
        "glm4v",
        ("Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration"),
        _plus("0.5.2", "qwen2_5_vl.py"),
        until="0.5.4.post2",
    ),
    Family("glm5-next", ("Glm5NextForConditionalGeneration",), _plus("0.5.20", "glm5_next.py")),
    Family("minimax-m2", ("MiniMaxM2ForCausalLM",), _plus("0.5.5.post1", "minimax_m2.py")),
    Family(
        "minimax-m3", ("MiniMaxM3SparseForCausalLM",), _plus("0.5.16", "minimax_m3.py"), flags_since="0.5.18"
    ),
    Family(
        "minimax-m3-vl",
        ("MiniMaxM3SparseForConditionalGeneration",),
        _plus("0.5.18", "minimax_m3_vl.py"),
        flags_since="0.5.18",
        shifted_default=True,
    ),
    Family("longcat", ("LongcatFlashForCausalLM",), _plus("0.5.6", "longcat_flash.py")),
    Family(
        "deepseek",
        ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"),
        (
            Era("0.5.4.post2", PLUS_ONE, "srt/models/deepseek_v2.py, PR #12319, first in 0.5.4.post2"),
            _deepseek("0.5.4.post2", "deepseek_v2.py")[1],
        ),
    ),
    Family("mistral-large-3", ("MistralLarge3ForCausalLM",), _deepseek("0.5.6.post1", "mistral_large_3.py")),
    Family("glm-moe-dsa", ("GlmMoeDsaForCausalLM",), _deepseek("0.5.9", "glm4_moe.py")),
    # 0.5.9 has the class but not the delegation (PR #19689); DELEGATED_BY_FIX knows what a fix makes of it.
    Family("kimi-k2.5", ("KimiK25ForConditionalGeneration",), _deepseek("0.5.10", "kimi_k25.py")),
    Family(
        "bailing-moe",
        ("BailingMoEForCausalLM", "BailingMoeForCausalLM", "BailingMoeV2ForCausalLM"),
        _plus("0.5.9", "bailing_moe.py"),
    ),
    Family("exaone-moe", ("ExaoneMoEForCausalLM",), _plus("0.5.9", "exaone_moe.py")),
    Family("exaone-moe-renamed", ("ExaoneMoeForCausalLM",), _plus("0.5.22", "exaone_moe.py")),
    Family("apertus", ("ApertusForCausalLM",), _plus("0.5.3", "apertus.py")),
    Family("sarvam-moe", ("SarvamMoEForCausalLM",), _plus("0.5.10", "sarvam_moe.py")),
    Family("mellum", ("MellumForCausalLM",), _plus("0.5.16", "qwen3_moe.py"), flags_since="0.5.16"),
    Family(
        "gemma3", ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), _plus("0.5.12", "gemma3_causal.py")
    ),
    Family(
        "gemma4",
        ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
        _plus("0.5.12", "gemma4_causal.py"),
        last_layer_since="0.5.12",
    ),
    Family(
        "gemma4-unified",
        ("Gemma4UnifiedForConditionalGeneration",),
        _plus("0.5.13", "gemma4_mm.py"),
        last_layer_since="0.5.13",
    ),
)


@dataclass(frozen=True)
class Delegation:
    """A target that captures only once a fix lets it pass the call on to the model inside it."""

    fix: str
    architecture: str
    inner: str
    first: str
    upstream: str
    source: str


DELEGATED_BY_FIX: tuple[Delegation, ...] = (
    Delegation(
        fix="kimi_k25_set_layers",
        architecture="KimiK25ForConditionalGeneration",
        inner="DeepseekV3ForCausalLM",
        first="0.5.9",
        upstream="0.5.10",
        source="PR #19689, upstream since 0.5.10",
    ),
)
GRAPH_FIX = "graph_capture_layers"


@dataclass(frozen=True)
class DraftClass:
    """An EAGLE-3 draft architecture that SGLang can load. weight_layouts: prefixes of its decoder layer's weights."""

    architecture: str
    since: str
    source: str
    mla: bool = False


DRAFT_CLASSES: tuple[DraftClass, ...] = (
    DraftClass("LlamaForCausalLMEagle3", FIRST_RELEASE, "srt/models/llama_eagle3.py, PR #4247"),
    DraftClass(
        "Eagle3DeepseekV2ForCausalLM", "0.5.12", "srt/models/kimi_k25_eagle3.py, first in 0.5.12", mla=True
    ),
)


def family_of(architecture: str) -> Family | None:
    """The family of a target's architecture, or None where no release is known to capture it."""
    return next((family for family in FAMILIES if architecture in family.architectures), None)


def draft_class(architecture: str) -> DraftClass | None:
    """The draft class of that name, or None."""
    return next((known for known in DRAFT_CLASSES if known.architecture == architecture), None)


def at_least(release: str, first: str) -> bool:
    """Whether ``release`` is ``first`` or later."""
    return version_key(release) >= version_key(first)
