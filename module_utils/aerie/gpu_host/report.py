"""The module gpu_host_check from its options to its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import AerieError, ErrorKind
from ..gpu import driver as gpu_driver
from ..instance.arguments import text_of
from . import nvml as gpu_host_nvml
from .devices import translate
from .driver import DRIVER_PIN, check_cuda, check_fabric, check_pin, cuda_major_of
from .env import check_conflict, check_units
from .facts import CAUTION, PROBLEM, DriverFacts, Finding, GpuFacts, HostFacts, Pair, topology_said
from .gpus import check_count, check_health, check_memory, check_model
from .limits import check_limits
from .nccl import check_conf, check_interfaces
from .xid import Xid, check_xids
from .xid import parse as parse_xids

BAD_TOLERATE = ErrorKind(
    "gpu-host-tolerate",
    "gpu_host_tolerate names a code that no check of a GPU host has, or that cannot be waived.",
)

# Without these the checks would say nothing about the GPUs at all.
_NEVER_TOLERATED = ("gpu-host-tolerate", "gpu-option", "gpu-selection")


@dataclass(frozen=True)
class Options:
    """The module's options; see its documentation. None: not checked."""

    expected_count: int | None = None
    expected_model: str | None = None
    expected_memory_mib: int | None = None
    min_shm_mib: int = 0
    cuda_major: int | None = None
    driver_version: str | None = None
    install_driver: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    instance_environment: Mapping[str, str] = field(default_factory=dict)
    required_env: Mapping[str, str | None] = field(default_factory=dict)
    verify_env: bool = False
    gpus: tuple[str, ...] | None = None
    tensor_parallel_size: int = 1
    tolerate: tuple[str, ...] = ()
    service_user: str | None = None
    tools_dir: str = ""

    @classmethod
    def from_params(cls, params: dict[str, Any]) -> Options:
        """Options from a module's parameters. Raises lock-invalid, gpu-host-tolerate."""
        tolerate = tuple(params.get("tolerate") or ())
        wrong = [
            code
            for code in tolerate
            if code not in ErrorKind.declared or not code.startswith("gpu-") or code in _NEVER_TOLERATED
        ]
        if wrong:
            raise BAD_TOLERATE.error(
                f"gpu_host_tolerate has {', '.join(wrong)}",
                evidence=[
                    f"codes: {', '.join(sorted(c for c in ErrorKind.declared if c.startswith('gpu-host-')))}"
                ],
                next="correct gpu_host_tolerate; the code stands in brackets in each message",
            )
        major = params.get("cuda_major")
        return cls(
            expected_count=params.get("expected_count"),
            expected_model=params.get("expected_model") or None,
            expected_memory_mib=params.get("expected_memory_mib"),
            min_shm_mib=params.get("min_shm_mib") or 0,
            cuda_major=cuda_major_of(params.get("lock_content") or "") if major is None else major,
            driver_version=params.get("driver_version") or None,
            install_driver=bool(params.get("install_driver")),
            environment=_texts(params.get("environment")),
            instance_environment=_texts(params.get("instance_environment")),
            required_env={
                str(name): None if value is None else text_of(value)
                for name, value in (params.get("required_env") or {}).items()
            },
            verify_env=bool(params.get("verify_env")),
            gpus=None if params.get("gpus") is None else tuple(params["gpus"]),
            tensor_parallel_size=params.get("tensor_parallel_size") or 1,
            tolerate=tolerate,
            service_user=params.get("service_user") or None,
            tools_dir=params.get("tools_dir") or "",
        )

    @property
    def server_environment(self) -> dict[str, str]:
        """What a server process gets: the host's defaults, the instance's own, what the host requires."""
        fixed = {name: value for name, value in self.required_env.items() if value is not None}
        return {**self.environment, **self.instance_environment, **fixed}


@dataclass(frozen=True)
class DriverReading:
    """What the driver said. known False: pynvml is not installed yet, so nothing could be asked."""

    driver: DriverFacts | None = None
    gpus: tuple[GpuFacts, ...] = ()
    pairs: tuple[Pair, ...] = ()
    findings: tuple[Finding, ...] = ()
    known: bool = True


@dataclass(frozen=True)
class Report:
    """What the module answers."""

    reading: DriverReading
    host: HostFacts
    xids: tuple[Xid, ...]
    findings: tuple[Finding, ...]
    install_driver: bool
    visible_devices: str | None

    @property
    def problems(self) -> list[Finding]:
        return [one for one in self.findings if one.severity == PROBLEM]

    @property
    def cautions(self) -> list[Finding]:
        return [one for one in self.findings if one.severity == CAUTION]

    def message(self) -> str:
        if self.problems:
            return "\n".join(one.error.message() for one in self.problems)
        if not self.reading.known:
            return "known after install: pynvml is not there yet"
        driver = self.reading.driver
        if driver is None:
            return f"no NVIDIA driver; none expected ({gpu_driver.pci_evidence()})"
        names = sorted({gpu.name for gpu in self.reading.gpus})
        parts = [f"{gpu_driver.gpus(len(self.reading.gpus))} {', '.join(names)}".rstrip()]
        parts.append(f"driver {driver.version} (CUDA {driver.cuda or 'unknown'})")
        parts += [topology_said(self.reading.pairs)] if self.reading.pairs else []
        return "; ".join(parts)

    def as_result(self) -> dict[str, Any]:
        driver = self.reading.driver
        return {
            "driver": None if driver is None else dict(vars(driver)),
            "gpus": [gpu.as_result() for gpu in self.reading.gpus],
            "topology": [pair.as_result() for pair in self.reading.pairs],
            "host": self.host.as_result(),
            "xids": [dict(vars(xid)) | {"fatal": xid.fatal} for xid in self.xids],
            "problems": [one.as_result() for one in self.problems],
            "cautions": [one.as_result() for one in self.cautions],
            "install_driver": self.install_driver,
            "cuda_visible_devices": self.visible_devices,
        }


def read_driver(options: Options, *, check_mode: bool) -> DriverReading:
    """Ask the driver. Whatever stops it becomes a finding, so that the host's own problems are told too."""
    try:
        if gpu_driver.library_missing():
            return _no_driver(options)
        try:
            nvml = gpu_driver.import_pynvml(options.tools_dir)
        except AerieError as error:
            severity = CAUTION if check_mode else PROBLEM
            return DriverReading(findings=(Finding(error, severity),), known=False)
        driver = gpu_driver.open_driver(nvml)
    except AerieError as error:
        if options.expected_count == 0 and error.kind is gpu_driver.NOT_LOADED:
            return DriverReading()
        return DriverReading(findings=(Finding(error),))
    try:
        facts = gpu_host_nvml.read_driver(driver)
        gpus = gpu_host_nvml.read_gpus(driver)
        return DriverReading(facts, tuple(gpus), tuple(gpu_host_nvml.read_pairs(driver, gpus)))
    except AerieError as error:
        return DriverReading(findings=(Finding(error),))
    finally:
        gpu_driver.close(driver)


def report(options: Options, reading: DriverReading, host: HostFacts) -> Report:
    """Judge readings under options. No host is asked here."""
    findings = [*reading.findings, *_host_findings(options, reading, host)]
    xids = tuple(parse_xids(host.kernel_log or ()))
    findings += check_xids(xids)
    visible = None
    if reading.driver is not None:
        findings += check_pin(reading.driver, options.driver_version)
        findings += check_cuda(reading.driver, options.cuda_major)
        findings += check_count(reading.gpus, host.pci_gpus, options.expected_count)
        findings += check_model(reading.gpus, options.expected_model)
        findings += check_memory(reading.gpus, options.expected_memory_mib)
        findings += check_health(reading.gpus)
    if options.gpus is not None or (options.tensor_parallel_size > 1 and reading.gpus):
        visible = _collect(
            findings,
            lambda: ",".join(map(str, translate(options.gpus, reading.gpus, options.tensor_parallel_size))),
        )
    pin_missed = (
        options.driver_version is not None
        and reading.known
        and (reading.driver is None or any(one.error.kind is DRIVER_PIN for one in findings))
    )
    judged = [_tolerated(one, options.tolerate) for one in findings]
    return Report(reading, host, xids, tuple(judged), bool(options.install_driver and pin_missed), visible)


def _host_findings(options: Options, reading: DriverReading, host: HostFacts) -> list[Finding]:
    environment = options.server_environment
    found: list[Finding] = []
    version = reading.driver.version if reading.driver else ""
    found += check_fabric(version, reading.gpus, host.nvswitches, host.fabric_manager)
    found += check_limits(host, options.min_shm_mib)
    found += check_interfaces(environment, host.nccl_files, host.interfaces)
    found += check_conf(environment, host.nccl_files)
    _collect(found, lambda: check_conflict(options.instance_environment, options.required_env))
    found += check_units(options.required_env, host.units, verify=options.verify_env)
    return found


def _no_driver(options: Options) -> DriverReading:
    """No driver library: fine where no GPU is expected, or where nothing is said and PCI shows none."""
    there = gpu_driver.pci_gpus()
    if options.expected_count == 0 or (options.expected_count is None and not there):
        return DriverReading()
    wanted = (
        "the host has GPUs" if options.expected_count is None else gpu_driver.gpus(options.expected_count)
    )
    error = gpu_driver.LIBRARY_MISSING.error(
        f"There is no NVIDIA driver library but {wanted}{'' if options.expected_count is None else ' expected'}",
        evidence=[f"{gpu_driver.SONAME} is not on the library path", gpu_driver.pci_evidence()],
        next="install the driver (gpu_host_driver_version), or set gpu_host_expected_count: 0 for a host that serves"
        " without GPUs",
    )
    return DriverReading(findings=(Finding(error),))


def _collect(findings: list[Finding], ask: Callable[[], Any]) -> Any:
    """The answer, or None with the error put among the findings."""
    try:
        return ask()
    except AerieError as error:
        findings.append(Finding(error))
        return None


def _tolerated(finding: Finding, codes: tuple[str, ...]) -> Finding:
    return Finding(finding.error, CAUTION) if finding.code in codes else finding


def _texts(values: Mapping[str, Any] | None) -> dict[str, str]:
    return {str(name): text_of(value) for name, value in (values or {}).items() if value is not None}
