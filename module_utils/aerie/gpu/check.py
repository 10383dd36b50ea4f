"""The module gpu_memory_zero from its options to its report: open the driver, find the GPUs, wait, judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ..errors import AerieError, ErrorKind
from . import driver as gpu_driver
from . import nvml as gpu_nvml
from .driver import Driver
from .failures import failure, holders_of
from .holders import Holder, device_openers, identify
from .readings import Rule, to_mib, with_neighbours
from .wait import Outcome, wait_until_free

BAD_OPTION = ErrorKind("gpu-option", "A number given to gpu_memory_zero is outside its range.")


@dataclass(frozen=True)
class Options:
    """The module's options. ``gpus`` None: all. ``expected_count`` None: at least one. Times in seconds.

    ``neighbours``: units, as globs, whose processes may hold the same GPUs.
    """

    gpus: tuple[str, ...] | None = None
    expected_count: int | None = None
    timeout: float = 60.0
    poll_interval: float = 0.05
    rule: Rule = field(default_factory=Rule)
    tools_dir: str = ""
    neighbours: tuple[str, ...] = ()

    @classmethod
    def from_params(cls, params: dict[str, Any]) -> Options:
        """Options from a module's parameters; raises BAD_OPTION, or gpu-selection for an empty list."""
        ranges = {
            "timeout": (0.0, 86400.0),
            "poll_interval": (0.01, 10.0),
            "tolerance_mib": (0, 1 << 30),
            "expected_count": (0, 1024),
        }
        for name, (low, high) in ranges.items():
            value = params.get(name)
            if value is not None and not low <= value <= high:
                raise BAD_OPTION.error(
                    f"{name} is {value}", evidence=[f"allowed: {low} to {high}"], next=f"correct {name}"
                )
        gpus = params.get("gpus")
        if gpus is not None:
            gpu_nvml.parse_selection(gpus)
        if gpus == [] and params.get("expected_count") != 0:
            raise gpu_nvml.BAD_SELECTION.error(
                "gpus is an empty list, so nothing would be looked at",
                evidence=["an empty list is allowed only together with expected_count: 0"],
                next="leave gpus out for all GPUs, or set expected_count: 0 for an instance that uses none",
            )
        return cls(
            gpus=None if gpus is None else tuple(gpus),
            expected_count=params.get("expected_count"),
            timeout=float(params["timeout"]),
            poll_interval=float(params["poll_interval"]),
            rule=Rule(params["tolerance_mib"], params["graphics_processes"]),
            tools_dir=params.get("tools_dir") or "",
            neighbours=tuple(params.get("neighbours") or ()),
        )

    def is_neighbour(self, pid: int) -> bool:
        """Whether ``pid`` belongs to a unit that may hold the same GPUs. A pid that nobody knows does not."""
        who = identify(pid) if self.neighbours else None
        return who is not None and any(fnmatchcase(who.unit or "", unit) for unit in self.neighbours)


@dataclass(frozen=True)
class Report:
    """What the module answers. ``error`` is set when it must fail."""

    message: str
    zero: bool | None
    outcome: Outcome = field(default_factory=lambda: Outcome((), 0.0))
    holders: tuple[Holder, ...] = ()
    driver_version: str | None = None
    error: AerieError | None = None

    def as_result(self) -> dict[str, Any]:
        return {
            "zero": self.zero,
            "gpus": [verdict.as_result() for verdict in self.outcome.verdicts],
            "holders": [holder.as_result() for holder in self.holders],
            "waited_s": round(self.outcome.waited_s, 3),
            "driver_version": self.driver_version,
        }


def check(
    options: Options, *, once: bool, clock: Callable[[], float], sleep: Callable[[float], None]
) -> Report:
    """Do what the module does. once: check mode, one look, and use is reported instead of failing.

    Raises AerieError when the GPUs cannot be looked at; a report with ``error`` when they are not proven free.
    """
    if options.gpus == ():
        return Report("no GPU asked for; none looked at", True)
    none_expected = options.expected_count == 0
    if gpu_driver.library_missing():
        if none_expected:
            return Report(f"no NVIDIA driver library; none expected ({gpu_driver.pci_evidence()})", True)
        raise _library_missing(options)
    try:
        nvml = gpu_driver.import_pynvml(options.tools_dir)
    except AerieError as error:
        if once:
            return Report(f"known after install: {error.what}", None)
        raise
    try:
        driver = gpu_driver.open_driver(nvml)
    except AerieError as error:
        if none_expected and error.kind is gpu_driver.NOT_LOADED:
            return Report(f"NVIDIA driver not loaded; none expected ({gpu_driver.pci_evidence()})", True)
        raise
    try:
        return _check_opened(driver, options, once, clock, sleep)
    finally:
        gpu_driver.close(driver)


def _check_opened(
    driver: Driver, options: Options, once: bool, clock: Callable[[], float], sleep: Callable[[float], None]
) -> Report:
    count = gpu_nvml.check_count(driver, options.expected_count)
    if count == 0:
        return Report("the driver shows no GPU; none expected", True, driver_version=driver.version)
    targets = gpu_nvml.find_targets(driver, options.gpus, count)
    outcome = wait_until_free(
        lambda: [with_neighbours(one, options.is_neighbour) for one in gpu_nvml.read(driver, targets)],
        options.rule,
        timeout=0.0 if once else options.timeout,
        interval=options.poll_interval,
        clock=clock,
        sleep=sleep,
    )
    if outcome.zero:
        return Report(_free(outcome, options.rule), True, outcome, driver_version=driver.version)
    holders = holders_of(outcome, identify)
    error = failure(outcome, options.rule, holders, identify, device_openers)
    if once and not any(verdict.final for verdict in outcome.busy):
        message = f"would wait up to {options.timeout:g} s: {error.message()}"
        return Report(message, False, outcome, tuple(holders), driver.version)
    return Report(error.what, False, outcome, tuple(holders), driver.version, error)


def _free(outcome: Outcome, rule: Rule) -> str:
    """What is said of success: how many, how long, and everything that was forgiven."""
    free = gpu_driver.gpus(len(outcome.verdicts))
    parts = [f"{free} free, waited {outcome.waited_s:.2f} s ({rule.said()})"]
    for verdict in outcome.verdicts:
        if verdict.leftover:
            parts.append(f"{verdict.reading.label}: {to_mib(verdict.leftover)} MiB forgiven")
        for process in verdict.ignored:
            size = "?" if process.used is None else to_mib(process.used)
            parts.append(
                f"{verdict.reading.label}: {process.kind} pid {process.pid}, {size} MiB, does not count"
            )
    return "; ".join(parts)


def _library_missing(options: Options) -> AerieError:
    wanted = "at least one GPU" if options.expected_count is None else gpu_driver.gpus(options.expected_count)
    return gpu_driver.LIBRARY_MISSING.error(
        f"There is no NVIDIA driver library but {wanted} expected",
        evidence=[f"{gpu_driver.SONAME} is not on the library path", gpu_driver.pci_evidence()],
        next=f"ldconfig -p | grep {gpu_driver.SONAME}; install the driver, or set expected_count: 0 for a host without"
        " GPUs",
    )
