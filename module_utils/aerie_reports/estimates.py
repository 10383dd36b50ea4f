"""Figures with intervals: ratios of sums over requests, paired comparisons, drift.

What is resampled is the *prompt*: requests of one prompt resemble each other (at temperature 0 their texts are the
same), so resampling single requests would make intervals too narrow. Every interval is SciPy's BCa bootstrap with a
fixed seed, so the same measurements always give the same report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from ansible.module_utils.aerie.measure.tune_errors import TOO_FEW_REQUESTS
from scipy import stats

SEED = 20250101
RESAMPLES = 4000
CONFIDENCE = 0.95
LARGE = 0.1
"""Drift above this share makes a run worthless."""
LEAST_PROMPTS = 4
"""Fewer prompts than this have no bootstrap worth the name."""

Row: TypeAlias = Mapping[str, Any]
"""One request: ``prompt`` (which one), ``tokens`` (output), ``seconds`` (all of it), ``ttft`` (to the first token)."""


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return self.text()

    def text(self, digits: int = 2) -> str:
        """``1.31 [1.27, 1.35]``"""
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"

    def scaled(self, factor: float) -> Estimate:
        """The estimate in another unit; ``factor`` is known exactly and above 0."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)

    def overlaps(self, other: Estimate) -> bool:
        """Whether the intervals have a point in common: then the two are a tie."""
        return self.low <= other.high and other.low <= self.high

    @property
    def half_width(self) -> float:
        """Half the interval: the smallest difference that could have been seen."""
        return (self.high - self.low) / 2

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return {"value": round(self.value, 6), "low": round(self.low, 6), "high": round(self.high, 6)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, float]) -> Estimate:
        """What :meth:`as_dict` made."""
        return cls(float(raw["value"]), float(raw["low"]), float(raw["high"]))


def by_prompt(rows: Sequence[Row], fields: Sequence[str]) -> dict[int, np.ndarray]:
    """Sums of ``fields`` for each prompt."""
    sums: dict[int, np.ndarray] = {}
    for row in rows:
        values = np.array([float(row[name]) for name in fields])
        sums[int(row["prompt"])] = sums.get(int(row["prompt"]), 0) + values
    return sums


def ratio(rows: Sequence[Row], top: str, bottom: str) -> Estimate:
    """Sum of ``top`` / sum of ``bottom`` over all requests."""
    return of_sums(rows, (top, bottom), lambda a, b: a / b)


def of_sums(rows: Sequence[Row], fields: Sequence[str], function: Any) -> Estimate:
    """A function of the sums of ``fields`` over all requests: it takes one array a field, and gives one."""
    sums = by_prompt(rows, fields)
    return _bootstrap(np.array([sums[prompt] for prompt in sorted(sums)]), function)


def paired_ratio(rows: Sequence[Row], others: Sequence[Row], top: str, bottom: str) -> Estimate:
    """(top/bottom of ``rows``) / (top/bottom of ``others``) over the prompts that both have, resampled together."""
    mine, theirs = by_prompt(rows, (top, bottom)), by_prompt(others, (top, bottom))
    common = sorted(set(mine) & set(theirs))
    table = np.array([np.concatenate([mine[p], theirs[p]]) for p in common]).reshape(len(common), 4)
    return _bootstrap(table, lambda a, b, c, d: (a / b) / (c / d))


def median(rows: Sequence[Row], field: str) -> Estimate:
    """Median over requests of one field."""
    values = np.array([float(row[field]) for row in rows if row.get(field) is not None])
    enough_prompts(len({row["prompt"] for row in rows}))
    if np.ptp(values) == 0:
        return Estimate(float(values[0]), float(values[0]), float(values[0]))
    # The percentile interval: BCa's acceleration is undefined for a median.
    found = stats.bootstrap(
        (values,),
        np.median,
        n_resamples=RESAMPLES,
        method="percentile",
        confidence_level=CONFIDENCE,
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return Estimate(float(np.median(values)), float(found.low), float(found.high))


def _bootstrap(table: np.ndarray, function: Any) -> Estimate:
    """Interval of a function of column sums; ``table`` [prompts, columns], rows resampled as wholes."""
    enough_prompts(len(table))

    def statistic(*columns: np.ndarray, axis: int = -1) -> Any:
        return function(*(column.sum(axis=axis) for column in columns))

    columns = tuple(table.T)
    value = float(statistic(*columns))
    each = function(*columns)  # of every prompt alone; all the same: nothing varies
    if np.ptp(each) <= 1e-12 * abs(value):
        return Estimate(value, value, value)
    found = stats.bootstrap(
        columns,
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        method="BCa",
        confidence_level=CONFIDENCE,
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return Estimate(value, float(found.low), float(found.high))


def enough_prompts(prompts: int) -> None:
    """Refuse what has no interval."""
    if prompts < LEAST_PROMPTS:
        raise TOO_FEW_REQUESTS.error(
            f"{prompts} prompts are too few for an interval",
            evidence=[f"at least {LEAST_PROMPTS} different prompts are needed"],
            next="raise sglang_tune_prompts",
        )


@dataclass(frozen=True)
class Drift:
    """The first setting against itself at the end of the run."""

    ratio: Estimate

    @property
    def size(self) -> float:
        """Share by which the machine changed under the measurement: 0.02 is 2 %."""
        return abs(self.ratio.value - 1.0)

    @property
    def seen(self) -> bool:
        """Whether the change is more than noise."""
        return self.ratio.low > 1.0 or self.ratio.high < 1.0

    def widen(self, estimate: Estimate) -> Estimate:
        """An interval of a comparison with the drift added: what changed by itself cannot be told apart."""
        factor = max(self.ratio.value, 1.0 / self.ratio.value)
        return Estimate(estimate.value, estimate.low / factor, estimate.high * factor)

    def text(self, where: str = "") -> str:
        """In words. ``where``: `` at batch 8``, where there are several."""
        if not self.seen:
            return f"no drift{where}: the first setting, measured again at the end, gave x {self.ratio}"
        return (
            f"drift of {self.size:.1%}{where}: the first setting, measured again at the end, gave x {self.ratio}; "
            + (
                "the machine was not quiet, measure again"
                if self.size > LARGE
                else "every interval is widened by it"
            )
        )


def drift(first: Sequence[Row], again: Sequence[Row]) -> Drift:
    """Output tokens per second of the same setting at the end / at the start, prompt by prompt."""
    return Drift(paired_ratio(again, first, "tokens", "seconds"))
