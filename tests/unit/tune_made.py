"""Made measurements with a known truth: a server whose cycle cost and acceptance are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from ansible.module_utils.aerie_reports.estimates import Estimate, ratio
from ansible.module_utils.aerie_reports.search import Measured


@dataclass(frozen=True)
class World:
    """acceptance: of each position, given that the one before was accepted. cycle: seconds over steps (0: baseline).

    noise: relative standard deviation of a request's time. spread: how much prompts differ in acceptance.
    """

    acceptance: Sequence[float]
    cycle: Callable[[int], float]
    noise: float = 0.02
    spread: float = 0.05
    prompts: int = 24
    tokens: int = 256
    ttft: float = 0.05
    seed: int = 1

    def shares(self, prompt: int) -> list[float]:
        """Acceptance by position for one prompt, the same whenever it is asked."""
        source = np.random.default_rng([self.seed, prompt])
        easy = source.normal(0, self.spread)
        return [float(np.clip(share + easy, 0.01, 0.99)) for share in self.acceptance]

    def length(self, steps: int, prompt: int | None = None) -> float:
        """True accept length; over all prompts, the ratio of the sums."""
        if prompt is None:
            return self.prompts / sum(1 / self.length(steps, p) for p in range(self.prompts))
        product, length = 1.0, 1.0
        for share in self.shares(prompt)[:steps]:
            product *= share
            length += product
        return length

    def rate(self, steps: int) -> float:
        """True output tokens per second at batch 1."""
        seconds = sum(
            self.ttft + (self.tokens - 1) * self.cycle(steps) / self.length(steps, p)
            for p in range(self.prompts)
        )
        return self.prompts * self.tokens / seconds

    def measure(self, steps: int, run: int = 0) -> Measured:
        """What a benchmark of that chain would bring."""
        source = np.random.default_rng([self.seed, 77, steps, run])
        rows, requests = [], []
        for prompt in range(self.prompts):
            histogram = self._histogram(source, steps, prompt)
            verifies = sum(histogram)
            # As on a real server, the length that this request happened to reach decides its time.
            length = sum(n * (a + 1) for a, n in enumerate(histogram)) / verifies if steps else 1.0
            decode = (self.tokens - 1) * self.cycle(steps) / length
            factor = source.normal(1, self.noise)
            rows.append(
                {
                    "prompt": prompt,
                    "tokens": self.tokens,
                    "seconds": self.ttft + decode * factor,
                    "ttft": self.ttft,
                }
            )
            requests.append({"prompt": prompt, "histogram": histogram})
        return Measured(steps, rows, requests if steps else [], 1.0)

    def baseline(self) -> Estimate:
        """The measured rate without speculation."""
        return ratio(self.measure(0).rows, "tokens", "seconds")

    def _histogram(self, source: np.random.Generator, steps: int, prompt: int) -> list[int]:
        shares = self.shares(prompt)[:steps]
        histogram = [0] * (steps + 1)
        gained = 0
        while gained < self.tokens - 1:
            accepted = 0
            while accepted < steps and source.random() < shares[accepted]:
                accepted += 1
            histogram[accepted] += 1
            gained += accepted + 1
        return histogram
