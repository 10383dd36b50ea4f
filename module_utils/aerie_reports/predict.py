"""Output tokens per second of every chain length, from acceptance by position and the cost of a cycle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .cost import CycleCost
from .estimates import Estimate

Z95 = 1.96


@dataclass(frozen=True)
class Load:
    """What a request looks like at one batch size; the same for every chain length.

    tokens: mean output tokens of a request. ttft: mean seconds to the first token. concurrency: mean number of
    requests that ran at a time.
    """

    tokens: float
    ttft: float
    concurrency: float

    def rate(self, seconds_per_token: float) -> float:
        """Output tokens per second of the server."""
        return self.concurrency * self.tokens / (self.ttft + (self.tokens - 1) * seconds_per_token)

    def seconds_per_token(self, rate: float) -> float:
        """The other way round."""
        return (self.concurrency * self.tokens / rate - self.ttft) / (self.tokens - 1)


@dataclass(frozen=True)
class Prediction:
    """One chain length; ``rate`` in output tokens per second."""

    steps: int
    accept_length: Estimate
    cycle_s: float
    cycle_sigma: float
    rate: Estimate

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "steps": self.steps,
            "accept_length": self.accept_length.as_dict(),
            "cycle_ms": round(self.cycle_s * 1e3, 4),
            "cycle_sigma_ms": round(self.cycle_sigma * 1e3, 4),
            "rate": self.rate.as_dict(),
        }


def predict(
    lengths: Sequence[int], acceptance: Mapping[int, Estimate], cost: CycleCost, load: Load
) -> dict[int, Prediction]:
    """Every chain length above 0 in ``lengths``. Zero steps are no chain: their rate is the baseline's, measured."""
    return {steps: _one(steps, acceptance[steps], cost.at(steps), load) for steps in lengths if steps > 0}


def _one(steps: int, length: Estimate, cycle: tuple[float, float], load: Load) -> Prediction:
    seconds, sigma = cycle
    rate = load.rate(seconds / length.value)
    decode = 1.0 - load.ttft * rate / (
        load.concurrency * load.tokens
    )  # share of the time that decoding takes
    spread = math.hypot(sigma / seconds, length.half_width / Z95 / length.value) * decode
    return Prediction(
        steps,
        length,
        seconds,
        sigma,
        Estimate(rate, rate / (1.0 + Z95 * spread), rate * (1.0 + Z95 * spread)),
    )


def regret(chosen: int, rates: Mapping[int, float]) -> float:
    """Share of the best setting's rate that was lost by choosing another one; 0 for the best."""
    return 1.0 - rates[chosen] / max(rates.values())


def best(rates: Mapping[int, Estimate]) -> tuple[int, list[int]]:
    """The setting with the highest rate, and those that cannot be told from it, fewest steps first.

    Of a tie with zero steps zero wins: no speculation is the simpler server.
    """
    top = max(rates, key=lambda steps: (rates[steps].value, -steps))
    ties = sorted(steps for steps in rates if steps != top and rates[steps].overlaps(rates[top]))
    return top, ties
