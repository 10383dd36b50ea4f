"""Ratio of sums with a bootstrap interval, and acceptance by position: arithmetic only.

The interval is BCa (bias-corrected and accelerated, Efron 1987). An accept length is a ratio whose
denominator varies from request to request, and easy prompts make its distribution skewed; with two dozen
requests the plain percentile interval is then shifted, and a gate on the lower bound cares about just that.
BCa corrects bias and skew and stays inside the range of the resampled values. Requests, not cycles, are
resampled, because the cycles of one request resemble each other.

Measured with 400 simulated runs of 24 requests, drawn from 24 real ones (accept lengths 1.6 to 5.9, a third
of them short): the true value lay below the 95 % BCa interval in 9 runs and below the percentile interval in
22; 10 is right.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

RESAMPLES = 2000
_SHIFT = 40
_MASK = (1 << _SHIFT) - 1
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Interval:
    """A figure with its confidence interval."""

    value: float
    low: float
    high: float
    confidence: float
    method: str

    def as_dict(self) -> dict[str, float | str]:
        """For the module's result."""
        return {
            "value": round(self.value, 4),
            "low": round(self.low, 4),
            "high": round(self.high, 4),
            "confidence": self.confidence,
            "method": self.method,
        }


def ratio_interval(
    pairs: Sequence[tuple[int, int]], confidence: float, seed: int, resamples: int = RESAMPLES
) -> Interval:
    """Sum of the numerators / sum of the denominators, with a BCa bootstrap interval over the pairs.

    pairs: (numerator, denominator) of each request; denominators at least 1, numerators at least 0.
    Deterministic for one seed. When all resamples agree the interval has no width.
    """
    if not pairs or any(d < 1 or n < 0 for n, d in pairs):
        raise ValueError("ratio_interval needs at least one pair, with denominators of 1 or more")
    value = sum(n for n, _ in pairs) / sum(d for _, d in pairs)
    draws = sorted(_resampled_ratios(pairs, seed, resamples))
    if draws[0] == draws[-1]:
        return Interval(value, value, value, confidence, "no variation between requests")
    bias = _NORMAL.inv_cdf(_share_below(draws, value))
    skew = _acceleration(pairs)
    tail = (1.0 - confidence) / 2.0
    low, high = (_quantile(draws, _adjusted(p, bias, skew)) for p in (tail, 1.0 - tail))
    return Interval(
        value, low, high, confidence, f"BCa bootstrap over requests, {resamples} resamples, seed {seed}"
    )


def _resampled_ratios(pairs: Sequence[tuple[int, int]], seed: int, resamples: int) -> list[float]:
    """Both sums of a resample are made in one pass, by packing each pair into one integer."""
    packed = [(n << _SHIFT) | d for n, d in pairs]
    rng = random.Random(seed)
    size = len(packed)
    sums = (sum(rng.choices(packed, k=size)) for _ in range(resamples))
    return [(s >> _SHIFT) / (s & _MASK) for s in sums]


def _share_below(draws: Sequence[float], value: float) -> float:
    """Share of resamples under the estimate; ties count half, and the ends are kept off 0 and 1."""
    below = sum(d < value for d in draws) + 0.5 * sum(d == value for d in draws)
    edge = 0.5 / len(draws)
    return min(max(below / len(draws), edge), 1.0 - edge)


def _acceleration(pairs: Sequence[tuple[int, int]]) -> float:
    """Skew of the estimate, from leaving out one request at a time."""
    top, bottom = sum(n for n, _ in pairs), sum(d for _, d in pairs)
    if len(pairs) < 2:
        return 0.0
    left_out = [(top - n) / (bottom - d) for n, d in pairs]
    mean = sum(left_out) / len(left_out)
    cubes = sum((mean - x) ** 3 for x in left_out)
    squares = sum((mean - x) ** 2 for x in left_out)
    return cubes / (6.0 * squares**1.5) if squares > 0 else 0.0


def _adjusted(p: float, bias: float, skew: float) -> float:
    z = bias + _NORMAL.inv_cdf(p)
    scale = 1.0 - skew * z
    if scale <= 0:  # beyond the reach of the correction: the outermost resample is the honest answer
        return 0.0 if z < 0 else 1.0
    return _NORMAL.cdf(bias + z / scale)


def _quantile(ordered: Sequence[float], p: float) -> float:
    """Linear interpolation between order statistics (numpy's default)."""
    place = p * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def sum_histograms(histograms: Sequence[Sequence[int]], steps: int) -> list[int]:
    """Verifies by number of accepted drafts, added over requests; ``steps + 1`` entries."""
    total = [0] * (steps + 1)
    for histogram in histograms:
        for accepted, verifies in enumerate(histogram):
            total[accepted] += verifies
    return total


def acceptance_by_position(histogram: Sequence[int]) -> list[dict[str, float | int | None]]:
    """Acceptance of draft position 1, 2, …, from verifies by number of accepted drafts.

    ``unconditional``: share of all verifies in which the position was accepted. ``conditional``: the same
    among the verifies in which the position before was accepted; null where that never happened. For a tree
    (topk above 1) a position is a depth.
    """
    reached = [sum(histogram[k:]) for k in range(len(histogram))]
    return [
        {
            "position": k,
            "unconditional": round(reached[k] / reached[0], 4) if reached[0] else None,
            "conditional": round(reached[k] / reached[k - 1], 4) if reached[k - 1] else None,
            "verifies": reached[k - 1],
        }
        for k in range(1, len(histogram))
    ]
