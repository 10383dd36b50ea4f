"""What a decode cycle costs: a fixed part, and each further step.

From whole cycles draft and verify cannot be told apart, because a chain of k steps verifies k + 1 tokens: each further
step adds one draft forward *and* one token. So :func:`fit_cycles` finds two figures, a fixed part and the cost of one
more step (draft and verify together). That is all that a prediction needs; profile.yml tells the parts of one setting.

It is weighted least squares. The uncertainty of the coefficients comes from that of the points, and is raised when
the points do not lie on a line. A mixture of experts bends: the first further tokens load more new experts than the
last, so a prediction between the points carries ``MODEL_ERROR`` besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MODEL_ERROR = 0.02
"""Share by which an unmeasured chain's cycle may differ from the line, one standard deviation."""


@dataclass(frozen=True)
class CyclePoint:
    """One measured chain length. ``sigma``: one standard deviation of ``seconds``."""

    steps: int
    seconds: float
    sigma: float


@dataclass(frozen=True)
class Line:
    """y = at_zero + slope * x with the covariance of the two coefficients. Units: seconds."""

    at_zero: float
    slope: float
    covariance: tuple[tuple[float, float], tuple[float, float]]
    residual: float  # root mean square of the relative residuals; 0 with two points

    def at(self, x: float) -> tuple[float, float]:
        """Value and standard deviation at x, without the model's own error."""
        c = np.array(self.covariance)
        g = np.array([1.0, x])
        return self.at_zero + self.slope * x, float(np.sqrt(max(g @ c @ g, 0.0)))

    @property
    def slope_sigma(self) -> float:
        """Standard deviation of the slope."""
        return float(np.sqrt(max(self.covariance[1][1], 0.0)))

    @property
    def at_zero_sigma(self) -> float:
        """Standard deviation of the constant."""
        return float(np.sqrt(max(self.covariance[0][0], 0.0)))


@dataclass(frozen=True)
class CycleCost:
    """``line`` over steps; measured chain lengths are answered with what was measured."""

    line: Line
    points: tuple[CyclePoint, ...]

    def at(self, steps: int) -> tuple[float, float]:
        """Seconds and standard deviation of a cycle with ``steps``.

        Between two measured chains the chord between them is closer than one line through all, where costs bend.
        """
        known = {point.steps: point for point in self.points}
        if steps in known:
            return known[steps].seconds, known[steps].sigma
        below = max((p for p in known if p < steps), default=None)
        above = min((p for p in known if p > steps), default=None)
        if below is None or above is None:
            value, sigma = self.line.at(steps)
        else:
            share = (steps - below) / (above - below)
            value = known[below].seconds * (1 - share) + known[above].seconds * share
            sigma = float(np.hypot(known[below].sigma * (1 - share), known[above].sigma * share))
        return value, float(np.hypot(sigma, MODEL_ERROR * value))


def fit_line(x: Sequence[float], y: Sequence[float], sigma: Sequence[float]) -> Line:
    """Weighted least squares of a line. Needs two different x. Units of y and sigma are the same."""
    xs, ys, sigmas = (np.asarray(values, dtype=float) for values in (x, y, sigma))
    if len(np.unique(xs)) < 2:
        raise ValueError("a line needs two different points")
    floor = 1e-4 * np.abs(ys).max()  # a point without noise must not outweigh all others
    weights = 1.0 / np.maximum(sigmas, floor)
    matrix = np.column_stack([np.ones_like(xs), xs])
    scaled = matrix * weights[:, None]
    solution, *_ = np.linalg.lstsq(scaled, ys * weights, rcond=None)
    residuals = ys - matrix @ solution
    covariance = np.linalg.inv(scaled.T @ scaled)
    freedom = len(xs) - 2
    if freedom > 0:
        covariance = covariance * max(1.0, float(np.sum((residuals * weights) ** 2)) / freedom)
    c = covariance.tolist()
    return Line(
        float(solution[0]),
        float(solution[1]),
        ((c[0][0], c[0][1]), (c[1][0], c[1][1])),
        float(np.sqrt(np.mean((residuals / ys) ** 2))) if freedom > 0 else 0.0,
    )


def fit_cycles(points: Sequence[CyclePoint]) -> CycleCost:
    """The cost of a cycle over its number of steps, from at least two chain lengths."""
    ordered = tuple(sorted(points, key=lambda point: point.steps))
    line = fit_line([p.steps for p in ordered], [p.seconds for p in ordered], [p.sigma for p in ordered])
    return CycleCost(line, ordered)
