"""Read GPUs until they are free, or until waiting is over. No NVML here: reader, clock and sleep are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .readings import FREE, GpuReading, Rule, Verdict, judge


@dataclass(frozen=True)
class Outcome:
    """The last look. ``waited_s``: from the first look to the end of the last one."""

    verdicts: tuple[Verdict, ...]
    waited_s: float

    @property
    def zero(self) -> bool:
        """Every GPU was looked at and holds nothing. No GPU at all is zero only when none was expected."""
        return all(verdict.state == FREE for verdict in self.verdicts)

    @property
    def busy(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.state != FREE)


def wait_until_free(
    read: Callable[[], Sequence[GpuReading]],
    rule: Rule,
    *,
    timeout: float,
    interval: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Outcome:
    """Look every ``interval`` seconds; return as soon as all are free, one can never be, or ``timeout`` passed.

    There is always one look, and one at the very end of the time: with ``timeout`` 0 exactly one.
    """
    begin = clock()
    deadline = begin + timeout
    while True:
        looked_at = clock()
        verdicts = tuple(judge(reading, rule) for reading in read())
        outcome = Outcome(verdicts, clock() - begin)
        if outcome.zero or any(verdict.final for verdict in verdicts) or looked_at >= deadline:
            return outcome
        sleep(max(0.0, min(interval, deadline - clock())))
