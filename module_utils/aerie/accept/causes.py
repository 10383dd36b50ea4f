"""What a low accept length most likely comes from, in the order in which to look, given what other checks found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..draft.case import NOTHING_TO_DO

DEAD = 0.05
WEAK = 0.35
COLLAPSE = 0.5

ALGORITHM, IDS_MISSING, IDS_SHIFTED = "algorithm", "ids-missing", "ids-shifted"
VOCABULARY, TARGET, FC = "vocabulary", "target", "fc"
WIRING: dict[str, str] = {
    ALGORITHM: "the draft never sees the right hidden states: algorithm EAGLE with an EAGLE-3 draft skips the draft's "
    "fc without a word (PR #21272): write EAGLE3",
    IDS_MISSING: "eagle_aux_hidden_state_layer_ids is missing, or not inside eagle_config: SGLang then takes its "
    "default layers silently",
    IDS_SHIFTED: "the layer ids are shifted for this release: their meaning changed for DeepSeek and Kimi in 0.5.13 "
    "(PR #25454), and CUDA graphs ignored them in 0.4.10.post2 to 0.5.10.post1 (PR #22836)",
    VOCABULARY: "draft_vocab_size is below vocab_size and the draft has no d2t, or a wrong one",
    TARGET: "the draft belongs to another target",
    FC: "the draft's fc joins the states in another order than the server",
}
IN_GRAPHS = "the states were right in debug mode, which runs without CUDA graphs: other layers may be captured in them"
WEAKLY = (
    "one captured layer is off by one: about 10 % instead of 45 % at position 1 in vLLM PR #43671",
    "the draft was trained on another version or quantization of the target",
    "the prompts are not what the draft was trained on, or are longer than its context (SGLang #6783)",
)
LATER = (
    "position 1 is fine and later ones collapse: the draft's own recursion is off (an EAGLE-3.1 draft's "
    "norm_output needs 0.5.12, or the draft was trained for fewer steps)",
    "fewer steps give nearly the same accept length at a lower cost",
)
NARROW = (
    "the interval is wide: more prompts narrow it (its width falls with the square root of their number)",
    "the floor was set for another step count, prompt set or temperature",
)


def known_from(checks: Mapping[str, Any]) -> tuple[list[str], set[str]]:
    """What other checks found, likeliest first, and the causes that they rule out.

    checks: ``draft_check`` (result of sglang_draft_check), ``hidden_states`` (of sglang_hidden_states, or the verdict
    that debug mode recorded), ``cuda_graphs`` (whether this server has them); each may be missing.
    """
    found: list[str] = []
    ruled_out: set[str] = set()
    hidden, draft = checks.get("hidden_states") or {}, checks.get("draft_check") or {}
    if hidden.get("passed") is True:
        ruled_out |= {ALGORITHM, IDS_MISSING, IDS_SHIFTED}
        if checks.get("cuda_graphs"):
            found.append(IN_GRAPHS)
    elif hidden.get("verdict"):
        found.append(f"hidden states in debug mode: {hidden['verdict']}")
    for finding in [*(draft.get("problems") or []), *(draft.get("notes") or [])]:
        if finding["fix"] != NOTHING_TO_DO:
            found.append(f"draft check: {finding['code']}: {finding['what']}. {finding['fix']}")
    if draft and not draft.get("problems"):
        ruled_out |= {ALGORITHM, VOCABULARY} - _noted(draft)
        if (draft.get("judged") or {}).get("training_layers"):
            ruled_out |= {IDS_MISSING, IDS_SHIFTED}
    return found, ruled_out


def _noted(draft: Mapping[str, Any]) -> set[str]:
    """Causes that a draft check was told to accept as meant so: they are not ruled out."""
    codes = " ".join(str(one.get("code")) for one in draft.get("notes") or [])
    noted = {VOCABULARY} if "d2t" in codes or "vocab" in codes else set()
    return noted | ({ALGORITHM} if "algorithm" in codes else set())


def likely_causes(figures: Mapping[str, Any], floor: float, checks: Mapping[str, Any]) -> list[str]:
    """Causes in the order in which to look for them: what was found, then what the positions say."""
    found, ruled_out = known_from(checks)
    first = first_position(figures)
    if first < DEAD:
        return [*found, *(text for cause, text in WIRING.items() if cause not in ruled_out)]
    causes: list[str] = []
    if figures["accept_length_interval"][1] >= floor:
        causes += NARROW
    if first < WEAK:
        causes += WEAKLY[1:] if IDS_SHIFTED in ruled_out else WEAKLY
    elif _collapses(figures):
        causes += LATER
    return [*found, *(causes or [NARROW[1], *WEAKLY[1:]])]


def ruled_out_line(checks: Mapping[str, Any]) -> str:
    """Which checks stand behind what is not in the list; empty where there were none."""
    by = []
    if (checks.get("hidden_states") or {}).get("passed") is True:
        by.append("the hidden states that the draft gets in debug mode")
    draft = checks.get("draft_check") or {}
    if draft and not draft.get("problems"):
        by.append("what sglang_draft_check judges")
    return f"not in question: {', '.join(by)}" if by else ""


def first_position(figures: Mapping[str, Any]) -> float:
    """Acceptance of position 1; without a histogram, the most that it can be."""
    positions = figures["acceptance_by_position"]
    if positions and positions[0]["unconditional"] is not None:
        return float(positions[0]["unconditional"])
    return min(float(figures["accept_length"]) - 1.0, 1.0)


def _collapses(figures: Mapping[str, Any]) -> bool:
    positions = figures["acceptance_by_position"] or []
    known = [p["conditional"] for p in positions if p["conditional"] is not None]
    return len(known) > 1 and known[1] < COLLAPSE * known[0]
