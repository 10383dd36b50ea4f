"""The gate: the lower bound of the interval against the floor, and what a failure most likely means. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import AerieError, ErrorKind

BELOW_FLOOR = ErrorKind(
    "accept-length-below-floor",
    "The accept length that the server reaches on chat prompts is not shown to be at least the floor: the "
    "lower bound of its confidence interval lies under it. The server answers correctly, but is slower "
    "than it should be, maybe slower than without speculation.",
)

_DEAD = 0.05
_WEAK = 0.35
_COLLAPSE = 0.5

WIRING = (
    "the draft never sees the right hidden states: algorithm EAGLE with an EAGLE-3 draft skips the draft's "
    "fc without a word (PR #21272): write EAGLE3",
    "eagle_aux_hidden_state_layer_ids is missing, or not inside eagle_config: SGLang then takes its "
    "default layers silently",
    "the layer ids are shifted for this release: their meaning changed for DeepSeek and Kimi in 0.5.13 (PR "
    "#25454), and CUDA graphs ignored them in 0.4.10.post2 to 0.5.10.post1 (PR #22836)",
    "draft_vocab_size is below vocab_size and the draft has no d2t, or a wrong one; or the draft belongs "
    "to another target",
)
WEAK = (
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


def judge(figures: Mapping[str, Any], floor: float | None) -> list[str]:
    """Why the run passed, in words; raises when the floor is not cleared."""
    if figures["accept_length"] is None:
        return ["answers checked; a server without speculation has no accept length"]
    low, high = figures["accept_length_interval"]
    figure = f"accept length {figures['accept_length']} [{low}, {high}]"
    if floor is None:
        return [f"{figure}; no min_accept_length was set, so it was only measured"]
    if low >= floor:
        return [f"{figure}: its lower bound clears the floor {floor}"]
    raise below_floor(figures, floor, figure)


def below_floor(figures: Mapping[str, Any], floor: float, figure: str) -> AerieError:
    """The error, with figures, positions and causes, likeliest first."""
    positions = figures["acceptance_by_position"]
    if positions is None:
        by_position = f"acceptance by position: unknown ({figures['unavailable']['acceptance_by_position']})"
    else:
        by_position = "acceptance by position: " + ", ".join(
            f"{p['position']}: {p['conditional']:.0%}" for p in positions if p["conditional"] is not None
        )
    return BELOW_FLOOR.error(
        f"{figure} does not clear the floor {floor}",
        evidence=[
            f"{figures['tokens']} tokens from {figures['requests']} requests, "
            f"{figures['verify_ct']} verifies, {figures['confidence']:.0%} interval",
            by_position,
            *(f"likely cause {n}: {cause}" for n, cause in enumerate(likely_causes(figures, floor), 1)),
        ],
        next=_next(figures, floor),
    )


def likely_causes(figures: Mapping[str, Any], floor: float) -> list[str]:
    """Causes in the order in which to look for them, from how acceptance falls with the position."""
    first = first_position(figures)
    if first < _DEAD:
        return list(WIRING)
    causes: list[str] = []
    if figures["accept_length_interval"][1] >= floor:
        causes += NARROW
    if first < _WEAK:
        causes += WEAK
    elif _collapses(figures):
        causes += LATER
    return causes or [NARROW[1], *WEAK[1:]]


def first_position(figures: Mapping[str, Any]) -> float:
    """Acceptance of position 1; without a histogram, the most that it can be."""
    positions = figures["acceptance_by_position"]
    if positions and positions[0]["unconditional"] is not None:
        return float(positions[0]["unconditional"])
    return min(float(figures["accept_length"]) - 1.0, 1.0)


def _collapses(figures: Mapping[str, Any]) -> bool:
    positions = figures["acceptance_by_position"] or []
    known = [p["conditional"] for p in positions if p["conditional"] is not None]
    return len(known) > 1 and known[1] < _COLLAPSE * known[0]


def _next(figures: Mapping[str, Any], floor: float) -> str:
    if figures["accept_length_interval"][1] >= floor and first_position(figures) >= _DEAD:
        return "send more prompts (num_prompts, prompts) and run again"
    return "compare eagle_config in the draft's config.json with its training's layer ids"
