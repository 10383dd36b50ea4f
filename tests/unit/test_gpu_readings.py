"""What readings mean: readings captured on a card, readings from public reports, and the wait around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from ansible.module_utils.aerie.gpu.readings import (
    COMPUTE,
    FREE,
    GRAPHICS,
    HELD,
    LOST,
    MIB,
    MPS,
    NEIGHBOUR,
    UNKNOWN,
    GpuProcess,
    GpuReading,
    Problem,
    Rule,
    judge,
    to_mib,
)
from ansible.module_utils.aerie.gpu.wait import Outcome, wait_until_free

TOTAL, RESERVED = 150754820096, 644939776

# One H200, driver 580.159, torch 2.11 + SGLang 0.5.17 (the project's GPU prototype, 2026): tag, memory info v2 `used`,
# v1 `used`, compute processes (pid, bytes), what it means.
CAPTURED = [
    ("idle-fresh", 0, 644939776, [], FREE),
    ("server-eagle", 1712979968, 2357919744, [(845, 1702887424)], HELD),
    ("after-kill9-launcher", 0, 644939776, [], FREE),
    ("server-base", 1593442304, 2238382080, [(1198, 1583349760)], HELD),
    (
        "four-servers",
        6835470336,
        7480410112,
        [(1546, 1700790272), (1584, 1700790272), (1628, 1702887424), (1621, 1700790272)],
        HELD,
    ),
    ("end", 0, 644939776, [], FREE),
]


def reading(used: int | None = 0, processes: Sequence[GpuProcess] = (), **more: Any) -> GpuReading:
    given: dict[str, Any] = {"total": TOTAL, "reserved": RESERVED, **more}
    return GpuReading(0, "GPU-x", "NVIDIA H200", used=used, processes=tuple(processes), **given)


@pytest.mark.parametrize(
    ("used", "used_v1", "pids", "state"), [row[1:] for row in CAPTURED], ids=[row[0] for row in CAPTURED]
)
def test_readings_captured_on_a_card(used: int, used_v1: int, pids: list[Any], state: str) -> None:
    verdict = judge(reading(used, [GpuProcess(pid, COMPUTE, size) for pid, size in pids]), Rule())
    assert verdict.state == state
    assert [process.pid for process in verdict.counted] == [pid for pid, _ in pids]
    assert used_v1 == used + RESERVED  # why version 1 is not used: idle, it is never 0


RULES = [
    ("compute process with no memory yet", reading(0, [GpuProcess(7, COMPUTE, 0)]), Rule(), HELD),
    ("process without attribution", reading(0, [GpuProcess(7, COMPUTE, None)]), Rule(), HELD),
    ("tolerance never forgives a process", reading(MIB, [GpuProcess(7, COMPUTE, MIB)]), Rule(999), HELD),
    ("mps client", reading(MIB, [GpuProcess(7, MPS, MIB)]), Rule(), HELD),
    ("one byte without a process", reading(1), Rule(), HELD),
    ("memory without a process, at the tolerance", reading(4 * MIB), Rule(4), FREE),
    ("memory without a process, over the tolerance", reading(4 * MIB + 1), Rule(4), HELD),
    ("graphics does not count", reading(4 * MIB, [GpuProcess(7, GRAPHICS, 4 * MIB)]), Rule(), FREE),
    ("graphics counts when told", reading(4 * MIB, [GpuProcess(7, GRAPHICS, 4 * MIB)]), Rule(0, True), HELD),
    ("graphics explains only its own", reading(9 * MIB, [GpuProcess(7, GRAPHICS, 4 * MIB)]), Rule(), HELD),
    (
        "a neighbour does not count",
        reading(4 * MIB, [GpuProcess(7, NEIGHBOUR, 4 * MIB)]),
        Rule(0, True),
        FREE,
    ),
    (
        "beside a neighbour a stranger counts",
        reading(5 * MIB, [GpuProcess(7, NEIGHBOUR, 4 * MIB), GpuProcess(8, COMPUTE, MIB)]),
        Rule(),
        HELD,
    ),
    (
        "a neighbour's context needs the tolerance",
        reading(14 * MIB, [GpuProcess(7, NEIGHBOUR, 4 * MIB)]),
        Rule(),
        HELD,
    ),
    (
        "graphics without attribution explains nothing",
        reading(MIB, [GpuProcess(7, GRAPHICS, None)]),
        Rule(),
        HELD,
    ),
    (
        "draws and computes",
        reading(MIB, [GpuProcess(7, GRAPHICS, MIB), GpuProcess(7, COMPUTE, None)]),
        Rule(),
        HELD,
    ),
    (
        "memory not supported",
        reading(None, problems=(Problem("memory info: Not Supported", True),)),
        Rule(),
        UNKNOWN,
    ),
    ("memory missing without a reason", reading(None), Rule(), UNKNOWN),
    (
        "process list unreadable",
        reading(0, problems=(Problem("compute process list: x"),)),
        Rule(999),
        UNKNOWN,
    ),
    ("lost", reading(None, problems=(Problem("memory info: GPU is lost", lost=True),)), Rule(), LOST),
]


@pytest.mark.parametrize(("seen", "rule", "state"), [row[1:] for row in RULES], ids=[row[0] for row in RULES])
def test_rules(seen: GpuReading, rule: Rule, state: str) -> None:
    assert judge(seen, rule).state == state


def test_one_process_in_two_lists_is_one_holder_that_computes() -> None:
    seen = reading(MIB, [GpuProcess(7, GRAPHICS, MIB), GpuProcess(7, COMPUTE, None)])
    assert judge(seen, Rule()).counted == (GpuProcess(7, COMPUTE, MIB),)


@pytest.mark.parametrize(
    ("size", "mib"), [(None, None), (0, 0), (1, 1), (MIB, 1), (MIB + 1, 2), (1702887424, 1624)]
)
def test_mib_are_rounded_up(size: int | None, mib: int | None) -> None:
    assert to_mib(size) == mib


class Clock:
    """A clock that moves only when slept on, plus a fixed cost of each look."""

    def __init__(self, cost: float = 0.0) -> None:
        self.now, self.cost, self.looks = 100.0, cost, 0

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds

    def run(self, series: list[GpuReading], timeout: float, interval: float = 0.5) -> Outcome:
        def look() -> list[GpuReading]:
            self.now += self.cost
            self.looks += 1
            return [series[min(self.looks, len(series)) - 1]]

        return wait_until_free(
            look, Rule(), timeout=timeout, interval=interval, clock=lambda: self.now, sleep=self.sleep
        )


BUSY, IDLE = reading(MIB), reading(0)


def test_returns_at_the_first_free_look() -> None:
    clock = Clock(cost=0.1)
    outcome = clock.run([BUSY, BUSY, IDLE, BUSY], timeout=60)
    assert outcome.zero
    assert clock.looks == 3
    assert outcome.waited_s == pytest.approx(3 * 0.1 + 2 * 0.5)


def test_looks_once_more_at_the_end_and_no_longer() -> None:
    clock = Clock()
    outcome = clock.run([BUSY], timeout=1.2)
    assert not outcome.zero
    assert (clock.looks, outcome.waited_s) == (4, pytest.approx(1.2))


def test_no_time_is_one_look() -> None:
    clock = Clock()
    assert not clock.run([BUSY, IDLE], timeout=0).zero
    assert clock.looks == 1


@pytest.mark.parametrize("problem", [Problem("Not Supported", permanent=True), Problem("lost", lost=True)])
def test_does_not_wait_for_what_cannot_change(problem: Problem) -> None:
    clock = Clock()
    assert not clock.run([reading(None, problems=(problem,))], timeout=60).zero
    assert clock.looks == 1


def test_waits_out_a_passing_read_error() -> None:
    clock = Clock()
    assert clock.run([reading(None, problems=(Problem("Timeout"),)), IDLE], timeout=60).zero


def test_one_busy_gpu_of_eight_is_not_zero() -> None:
    readings = [reading(0)] * 7 + [reading(1)]
    outcome = Outcome(tuple(judge(r, Rule()) for r in readings), 0.0)
    assert not outcome.zero
    assert len(outcome.busy) == 1
