"""The gate: the lower bound of the interval against the floor, and what a failure most likely means. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import AerieError, ErrorKind
from .causes import DEAD, first_position, likely_causes, ruled_out_line

BELOW_FLOOR = ErrorKind(
    "accept-length-below-floor",
    "The accept length that the server reaches on chat prompts is not shown to be at least the floor: the "
    "lower bound of its confidence interval lies under it. The server answers correctly, but is slower "
    "than it should be, maybe slower than without speculation.",
)


def judge(figures: Mapping[str, Any], floor: float | None, checks: Mapping[str, Any]) -> list[str]:
    """Why the run passed, in words; raises when the floor is not cleared. ``checks``: see ``accept_causes``."""
    if figures["accept_length"] is None:
        return ["answers checked; a server without speculation has no accept length"]
    low, high = figures["accept_length_interval"]
    figure = f"accept length {figures['accept_length']} [{low}, {high}]"
    if floor is None:
        return [f"{figure}; no min_accept_length was set, so it was only measured"]
    if low >= floor:
        return [f"{figure}: its lower bound clears the floor {floor}"]
    raise below_floor(figures, floor, figure, checks)


def below_floor(
    figures: Mapping[str, Any], floor: float, figure: str, checks: Mapping[str, Any]
) -> AerieError:
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
            *([line] if (line := ruled_out_line(checks)) else []),
            *(
                f"likely cause {n}: {cause}"
                for n, cause in enumerate(likely_causes(figures, floor, checks), 1)
            ),
        ],
        next=_next(figures, floor, checks),
    )


def _next(figures: Mapping[str, Any], floor: float, checks: Mapping[str, Any]) -> str:
    if figures["accept_length_interval"][1] >= floor and first_position(figures) >= DEAD:
        return "send more prompts (num_prompts, prompts) and run again"
    if (checks.get("hidden_states") or {}).get("passed") is True:
        return "follow the likely causes above in their order"
    return (
        "ansible-playbook debug.yml with sglang_server_hidden_states_reference (docs/hidden-states.md) says which "
        "states the draft gets; eagle_config in its config.json says which it asks for"
    )
