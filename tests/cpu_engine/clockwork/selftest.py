"""Run target and draft in torch, every token as root, and compare with the tables."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import linear, silu

from .codes import Codes
from .draft import Draft
from .schedule import Schedule
from .target import Weights
from .text import VOCABULARY, Text
from .wirings import Wiring


@dataclass(frozen=True)
class Outcome:
    """``surprises``: drafts that were right or wrong against the schedule; ``right``: drafts that were."""

    surprises: int
    right: int


def norm(x: torch.Tensor) -> torch.Tensor:
    """RMSNorm with unit weight."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Llama's gated MLP."""
    return linear(silu(linear(x, gate)) * linear(x, up), down)


def run_target(weights: Weights, codes: Codes, text: Text, dtype: torch.dtype) -> list[torch.Tensor]:
    """Hidden states of every token before each layer and after the last; checks states and successor.

    Attention is left out: its output projection is zero.
    """
    hidden = weights["model.embed_tokens.weight"].to(dtype)
    states = [hidden]
    for layer in range(codes.layers):
        parts = (
            weights[f"model.layers.{layer}.mlp.{p}_proj.weight"].to(dtype) for p in ("gate", "up", "down")
        )
        hidden = hidden + mlp(norm(hidden), *parts)
        states.append(hidden)
    drift = max(
        (state.float() - truth).abs().max().item() for state, truth in zip(states, codes.states, strict=True)
    )
    said = (norm(hidden) @ weights["lm_head.weight"].to(dtype).T).argmax(-1).tolist()
    if said != text.successor or drift > 1e-4:
        raise AssertionError(f"the target does not do as planned in {dtype}: drift {drift}")
    return states


def run_draft(
    draft: Draft,
    states: list[torch.Tensor],
    text: Text,
    schedule: Schedule,
    wiring: Wiring,
    dtype: torch.dtype,
) -> Outcome:
    """Draft two positions further than the schedule is long; a root leaves the count at its first wrong draft."""
    assert wiring.captured is not None
    fc = (draft.fc if wiring.fc is None else wiring.fc).to(dtype)
    hidden = torch.cat([states[layer] for layer in wiring.captured], dim=1) @ fc.T
    gate, up, down, head = (part.to(dtype) for part in (draft.gate, draft.up, draft.down, draft.head))
    successor, tokens = torch.tensor(text.successor), torch.tensor(draft.tokens)
    said = truth = successor
    alive = torch.ones(VOCABULARY, dtype=torch.bool)
    surprises = right = 0
    last = len(schedule.wrong) - 1
    for position in range(last + 3):
        hidden = draft.add_embedding(hidden, said)
        hidden = hidden + mlp(norm(hidden), gate, up, down)
        said, truth = tokens[(norm(hidden) @ head.T).argmax(-1)], successor[truth]
        missed = set(schedule.wrong[min(position, last)])
        planned = torch.tensor([token not in missed for token in truth.tolist()])
        surprises += int(((said == truth) != planned)[alive].sum())
        alive &= said == truth
        right += int(alive.sum())
        if not alive.any():
            break
    return Outcome(surprises, right)


def selftest(
    target: Weights, draft: Draft, codes: Codes, text: Text, schedule: Schedule, wirings: list[Wiring]
) -> dict[str, Outcome]:
    """Every wiring that can be run here in float32, the right ones in bfloat16 too (which is slow on a CPU).

    AssertionError when one does not do as planned.
    """
    outcomes = {}
    for dtype in (torch.float32, torch.bfloat16):
        states = run_target(target, codes, text, dtype)
        for wiring in wirings:
            if wiring.captured is None or not (wiring.right or dtype is torch.float32):
                continue
            outcome = run_draft(draft, states, text, schedule, wiring, dtype)
            outcomes[f"{wiring.name} {str(dtype).removeprefix('torch.')}"] = outcome
            if outcome.surprises if wiring.right else outcome.right:
                raise AssertionError(f"{wiring.name} in {dtype}: {outcome}")
    return outcomes
