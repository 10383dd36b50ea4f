"""Which chain length to start next. Pure: it sees what was measured and names one more, or none.

The predicted way: the longest chain first (it shows the acceptance of all), then the shortest (the other end of the
cost), then whatever the predictions put highest, until the best that was measured cannot be beaten by more than the
predictions' own uncertainty, or the allowance is used. The exhaustive way measures all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .acceptance import accept_lengths
from .cost import CycleCost, CyclePoint, fit_cycles
from .estimates import Estimate, Row, ratio
from .predict import Z95, Load, Prediction, predict

SHARE_OF_STARTS = 0.4
"""The predicted way starts at most this share of the chain lengths, but always three (where there are three)."""


@dataclass(frozen=True)
class Measured:
    """One started chain length at the batch size that decides.

    rows: requests (``prompt``, ``tokens``, ``seconds``, ``ttft``). requests: ``prompt`` and ``histogram`` of each, or
    empty where the release gives none. concurrency: mean number of requests that ran at a time.
    """

    steps: int
    rows: Sequence[Row]
    requests: Sequence[Mapping[str, object]]
    concurrency: float

    @property
    def rate(self) -> Estimate:
        """Output tokens per second."""
        return ratio(self.rows, "tokens", "seconds").scaled(self.concurrency)

    @property
    def load(self) -> Load:
        """What a request looks like here."""
        n = len(self.rows)
        return Load(
            tokens=sum(float(row["tokens"]) for row in self.rows) / n,
            ttft=sum(float(row["ttft"]) for row in self.rows) / n,
            concurrency=self.concurrency,
        )

    def own_accept_length(self) -> Estimate:
        """Accept length of this chain as it ran."""
        return accept_lengths(self.requests, self.steps)[self.steps]

    def cycle(self) -> CyclePoint:
        """Seconds of a decode cycle: the accept length by the time that a token took."""
        rows = [
            {"prompt": r["prompt"], "s": float(r["seconds"]) - float(r["ttft"]), "n": float(r["tokens"]) - 1}
            for r in self.rows
            if float(r["tokens"]) > 1
        ]
        per_token, length = ratio(rows, "s", "n"), self.own_accept_length()
        seconds = per_token.value * length.value
        # The two come from one pass or two over the same prompts; a prompt that is accepted badly is slow in both, so
        # adding the variances is an upper bound.
        spread = max(per_token.half_width / per_token.value, length.half_width / length.value) / Z95
        return CyclePoint(self.steps, seconds, spread * seconds)


@dataclass(frozen=True)
class Outlook:
    """What the measurements so far say about every chain length."""

    acceptance: dict[int, Estimate]
    cost: CycleCost
    predictions: dict[int, Prediction]


def can_predict(measured: Mapping[int, Measured], longest: int) -> bool:
    """Whether the longest chain was measured with its acceptance by position, and another one besides."""
    return longest in measured and bool(measured[longest].requests) and len(measured) >= 2


def outlook(measured: Mapping[int, Measured], lengths: Sequence[int]) -> Outlook:
    """Predictions for all ``lengths`` above 0; ``measured`` holds the longest and at least one more, none of 0."""
    longest = max(lengths)
    own = {
        steps: one.own_accept_length().value
        for steps, one in measured.items()
        if steps < longest and one.requests
    }
    acceptance = accept_lengths(measured[longest].requests, longest, own)
    cost = fit_cycles([one.cycle() for one in measured.values()])
    loads = [one.load for one in measured.values()]
    load = Load(*(sum(values) / len(loads) for values in zip(*map(_fields, loads), strict=True)))
    return Outlook(acceptance, cost, predict(lengths, acceptance, cost, load))


def _fields(load: Load) -> tuple[float, float, float]:
    return load.tokens, load.ttft, load.concurrency


def allowance(lengths: Sequence[int]) -> int:
    """How many chain lengths the predicted way may start."""
    count = len([steps for steps in lengths if steps > 0])
    return min(count, max(3, int(SHARE_OF_STARTS * count)))


def next_length(
    lengths: Sequence[int],
    measured: Mapping[int, Measured],
    failed: Sequence[int] = (),
    *,
    exhaustive: bool = False,
    baseline: Estimate | None = None,
) -> int | None:
    """The next chain length to start, or None when enough is known.

    lengths: candidates, 0 (no speculation) left out or not: it is measured by its own setting. measured: the chains
    that ran, by steps. failed: those that did not start or did not pass; they are not tried again and count as
    starts. baseline: rate without speculation, which a chain has to beat to be worth a start.
    """
    chains = sorted(steps for steps in set(lengths) if steps > 0)
    open_ = [steps for steps in chains if steps not in measured and steps not in failed]
    if not open_:
        return None
    usable = [steps for steps in chains if steps not in failed]
    longest = usable[-1]
    if longest not in measured:
        return longest
    if exhaustive or not measured[longest].requests:
        return open_[-1]
    if len(measured) < 2:
        return open_[0]
    if len(measured) + len(failed) >= allowance(chains):
        return None
    return _promising(measured, usable, open_, baseline)


def _promising(
    measured: Mapping[int, Measured], usable: Sequence[int], open_: Sequence[int], baseline: Estimate | None
) -> int | None:
    """The unmeasured chain with the highest prediction, when it may still beat what was measured."""
    predictions = outlook(measured, usable).predictions
    top = max(open_, key=lambda steps: predictions[steps].rate.value)
    to_beat = max(one.rate.value for one in measured.values())
    if baseline is not None:
        to_beat = max(to_beat, baseline.value)
    return top if predictions[top].rate.high > to_beat else None
