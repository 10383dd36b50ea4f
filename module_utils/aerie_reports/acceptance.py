"""From one long chain to the accept length of every shorter one.

With topk 1 the drafts form a chain, and a position is accepted only when all before it were. Whether it is accepted
depends on the text so far, not on how many more positions are drafted behind it. So a verify that accepted a of K
drafts would have accepted min(a, k) of k. That alone is too low where easy text makes long runs: a shorter chain begins
anew inside a run and spends more verifies there than the long one. The a + 1 tokens of such a verify (the bonus token
included) would have taken the shorter chain (a + 1) / (k + 1) verifies, rounded up where the run was seen to end. That
in turn is too low where it is the position that counts: a draft far down the chain is worse than a fresh chain's.

How much of each holds is the pair's own, so it is learnt from the shorter chains that ran: `runs` 0 is the first, 1 the
second. On texts made of easy and hard tokens, where the second holds, it is off by at most 2 %, and the first by up to
16 %. Seen on an H200 (tests/gpu/results/2026-11-30-two-h200-speed, ten chains, three batch sizes, each from each longer
one down to five): 4.0 % (root mean square), at most 7.3 %, by the first; 1.9 % and 4.7 % by the second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from .estimates import Estimate, of_sums


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


def accept_length(histogram: Sequence[int], steps: int, runs: float = 0.0) -> float:
    """Tokens gained per verify by a chain of ``steps``, bonus token included; 1.0 for no chain at all.

    histogram: verifies by accepted drafts, [0 … K], of a chain of K >= ``steps``.
    """
    return float(_length(histogram, steps, runs))


def accept_lengths(
    requests: Sequence[Mapping[str, Any]], longest: int, own: Mapping[int, float] | None = None
) -> dict[int, Estimate]:
    """Accept length of every chain from 1 to ``longest``, with intervals over prompts.

    requests: ``prompt`` and ``histogram`` of each (verifies by accepted drafts; SGLang's ends at the most that it saw).
    own: what shorter chains gained where they ran themselves.
    """
    names = [str(accepted) for accepted in range(longest + 1)]
    rows = [
        {"prompt": request["prompt"], **dict(zip_longest(names, request["histogram"], fillvalue=0))}
        for request in requests
        if sum(request["histogram"])
    ]
    runs = learnt_runs([sum(row[name] for row in rows) for name in names], own or {})
    return {
        steps: of_sums(rows, names, lambda *counts, k=steps: _length(counts, k, runs))
        for steps in range(1, longest + 1)
    }


def learnt_runs(histogram: Sequence[int], own: Mapping[int, float]) -> float:
    """Which share of the second way fits best (least squares) what shorter chains gained; 0 where none ran."""
    top = bottom = 0.0
    for steps, length in own.items():
        first = accept_length(histogram, steps)
        apart = accept_length(histogram, steps, 1.0) - first
        top += apart * (length - first)
        bottom += apart * apart
    return min(max(top / bottom, 0.0), 1.0) if bottom else 0.0


def _length(counts: Sequence[Any], steps: int, runs: float) -> Any:
    """Accept length of a chain of ``steps``; ``counts``: [0 … K], numbers or arrays of one shape."""
    longest = len(counts) - 1
    first = sum(n * (1 + min(a, steps)) for a, n in enumerate(counts)) / sum(counts)
    if not runs:
        return first
    verifies = sum(
        n * ((a + 1) / (steps + 1) if a == longest else math.ceil((a + 1) / (steps + 1)))
        for a, n in enumerate(counts)
    )
    second = sum(n * (a + 1) for a, n in enumerate(counts)) / verifies
    return (1.0 - runs) * first + runs * second
