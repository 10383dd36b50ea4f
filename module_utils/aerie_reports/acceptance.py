"""From one long chain to the accept length of every shorter one.

With topk 1 the drafts form a chain, and position j is accepted only when all before it were. Whether it is accepted
depends on the text so far, not on how many more positions are drafted behind it; so a server that drafts K positions
shows the acceptance of every shorter chain: a verify that accepted a of K would have accepted min(a, k) of k.

What this leaves out: a shorter chain begins its cycles at other tokens. Where acceptance at neighbouring tokens is
strongly related, the figures move a little; the report shows predicted and measured side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .estimates import Estimate, ratio


def survival(histogram: Sequence[int]) -> list[float]:
    """Share of verifies in which at least 1, 2, … drafts were accepted, from verifies by accepted drafts."""
    total = sum(histogram)
    return [sum(histogram[j:]) / total for j in range(1, len(histogram))]


LEAST_VERIFIES = 20
"""A share of fewer verifies than this is noise."""


def conditional(histogram: Sequence[int]) -> list[float | None]:
    """Acceptance of position 1, 2, … among the verifies that accepted the one before; None: hardly ever reached."""
    reached = [sum(histogram[j:]) for j in range(len(histogram))]
    return [
        reached[j] / reached[j - 1] if reached[j - 1] >= LEAST_VERIFIES else None
        for j in range(1, len(histogram))
    ]


def accept_length(histogram: Sequence[int], steps: int) -> float:
    """Tokens gained per verify by a chain of ``steps``, bonus token included; 1.0 for no chain at all."""
    return 1.0 + sum(survival(histogram)[:steps])


def accept_lengths(requests: Sequence[Mapping[str, Any]], longest: int) -> dict[int, Estimate]:
    """Accept length of every chain from 1 to ``longest``, with intervals over prompts.

    requests: ``prompt`` and ``histogram`` of each (verifies by accepted drafts, at least up to ``longest``).
    """
    found = {}
    for steps in range(1, longest + 1):
        rows = [
            {
                "prompt": request["prompt"],
                "gained": sum(n * (1 + min(a, steps)) for a, n in enumerate(request["histogram"])),
                "verifies": sum(request["histogram"]),
            }
            for request in requests
            if sum(request["histogram"])
        ]
        found[steps] = ratio(rows, "gained", "verifies")
    return found
