"""Where the draft errs: acceptance by position is as asked, and every answer settles to one value."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from .text import Text


@dataclass(frozen=True)
class Schedule:
    """``wrong[k]``: true tokens that the draft misses at chain position k; ``nominal[k]``: length at k + 1
    steps.

    ``nominal`` is 1 + sum of products of the acceptances, what independent errors would give.
    """

    acceptance: tuple[float, ...]
    wrong: list[list[int]]
    nominal: list[float]
    seed: int


def nominal_lengths(acceptance: Sequence[float]) -> list[float]:
    """Accept length at 1, 2, ... steps if errors at different positions were independent."""
    lengths, product, length = [], 1.0, 1.0
    for share in acceptance:
        product *= share
        length += product
        lengths.append(length)
    return lengths


def make_schedule(text: Text, acceptance: Sequence[float], seeds: int) -> Schedule:
    """Try ``seeds`` random schedules and keep the one whose settled lengths are nearest to nominal.

    Schedules in which different sentences settle to different lengths come last: the expected value should
    not depend on the prompt.
    """
    nominal = nominal_lengths(acceptance)

    def quality(seed: int) -> tuple[bool, float]:
        wrong = _draw(text.ring, acceptance, seed)
        several, miss = False, 0.0
        for steps, wanted in enumerate(nominal, start=1):
            settled = _settled_lengths(text, wrong, steps)
            several |= max(settled) - min(settled) > 1e-9
            miss = max(miss, *(abs(length - wanted) for length in settled))
        return several, miss

    best = min(range(seeds), key=quality)
    return Schedule(tuple(acceptance), _draw(text.ring, acceptance, best), nominal, best)


def _draw(ring: list[int], acceptance: Sequence[float], seed: int) -> list[list[int]]:
    """For each position, a random share of 1 - acceptance of the ring's tokens."""
    source = random.Random(seed)
    return [sorted(source.sample(ring, round((1 - share) * len(ring)))) for share in acceptance]


def _settled_lengths(text: Text, wrong: list[list[int]], steps: int) -> list[float]:
    """Mean tokens per verification in the cycle reached from each sentence, by index into the ring."""
    size = len(text.ring)
    missed = [frozenset(tokens) for tokens in wrong]
    advance = []
    for root in range(size):
        accepted = 0
        while accepted < steps and text.ring[(root + accepted + 1) % size] not in missed[accepted]:
            accepted += 1
        advance.append(accepted + 1)
    index = {token: i for i, token in enumerate(text.ring)}
    return [_cycle_mean(index[start], advance) for start in text.starts]


def _cycle_mean(root: int, advance: list[int]) -> float:
    """Follow ``root -> root + advance[root]`` around the ring into its cycle and average over that."""
    order: dict[int, int] = {}
    while root not in order:
        order[root] = len(order)
        root = (root + advance[root]) % len(advance)
    cycle = list(order)[order[root] :]
    return sum(advance[i] for i in cycle) / len(cycle)
