"""What is known of a GPU host at one moment: the driver, its GPUs, how they are connected, and the host around them.

Data only: who reads it is in gpu_host_nvml and gpu_host_system, what follows from it in gpu_host_report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import AerieError

PROBLEM = "problem"
CAUTION = "caution"


@dataclass(frozen=True)
class Finding:
    """Something wrong (``problem``: the run fails) or worth a look (``caution``: it is only said)."""

    error: AerieError
    severity: str = PROBLEM

    @property
    def code(self) -> str:
        return self.error.kind.code

    def as_result(self) -> dict[str, Any]:
        return dict(self.error.as_result()["error"])


@dataclass(frozen=True)
class Instance:
    """One MIG instance."""

    index: int
    uuid: str
    name: str


@dataclass(frozen=True)
class GpuFacts:
    """One GPU. None: the driver or the part does not say.

    pci: as sysfs writes it (``0000:18:00.0``). memory_mib: all of it. numa: node of the CPUs that it hangs on.
    ecc_uncorrected: since the driver was loaded; ecc_uncorrected_lifetime: ever. rows_remapped: rows replaced after
    uncorrectable errors, which is repair, not damage. fabric: ``completed`` and so on; fabric_error: what it ended
    with. recovery: what the driver wants done (``reset``, ``reboot``), from R570 on.
    """

    index: int
    uuid: str = ""
    name: str = ""
    pci: str = ""
    memory_mib: int | None = None
    compute_capability: str | None = None
    numa: int | None = None
    mig: bool = False
    instances: tuple[Instance, ...] = ()
    ecc_uncorrected: int | None = None
    ecc_uncorrected_lifetime: int | None = None
    rows_remapped: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    nvlinks_up: int = 0
    nvlinks_down: int = 0
    fabric: str | None = None
    fabric_error: str | None = None
    recovery: str | None = None
    lost: bool = False
    unreadable: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return (
            f"GPU {self.index} ({self.name or 'name unknown'}, {self.pci or self.uuid or 'address unknown'})"
        )

    def as_result(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "instances": [asdict(one) for one in self.instances],
            "unreadable": list(self.unreadable),
        }


@dataclass(frozen=True)
class Pair:
    """How two GPUs reach each other.

    path: as ``nvidia-smi topo -m`` writes it: ``NV18``, or the PCIe path ``PIX``, ``PXB``, ``PHB``, ``NODE``, ``SYS``.
    nvlinks: number of links, 0 without. pcie: the PCIe path also where NVLink is. p2p: direct reads work.
    """

    a: int
    b: int
    nvlinks: int
    pcie: str | None
    p2p: bool | None
    same_numa: bool | None

    @property
    def path(self) -> str:
        return f"NV{self.nvlinks}" if self.nvlinks else self.pcie or "unknown"

    def as_result(self) -> dict[str, Any]:
        return {"a": self.a, "b": self.b, "path": self.path, **asdict(self)}


@dataclass(frozen=True)
class DriverFacts:
    """The driver. cuda: the newest CUDA that it supports, ``13.0``. kernel_module: version of the loaded module."""

    version: str
    nvml_version: str
    cuda: str | None = None
    kernel_module: str | None = None
    library: str = ""


@dataclass(frozen=True)
class Interface:
    """A network interface. running: up and with a carrier; addressed: it has an IPv4 or IPv6 address."""

    name: str
    running: bool
    addressed: bool

    @property
    def usable(self) -> bool:
        return self.running and self.addressed

    def said(self) -> str:
        state = "running" if self.running else "not running"
        return f"{self.name}: {state}, {'has an address' if self.addressed else 'no address'}"


@dataclass(frozen=True)
class FabricManager:
    """The service nvidia-fabricmanager. active: systemd's ActiveState, or ``not-found``."""

    active: str
    version: str | None = None


@dataclass(frozen=True)
class UnitEnvironment:
    """The environment of one server unit, and of its main process where one lives."""

    unit: str
    environment: dict[str, str]
    pid: int = 0
    process: dict[str, str] | None = None


@dataclass(frozen=True)
class HostFacts:
    """The host around the GPUs. kernel_log: the NVIDIA driver's fault lines since boot, None when not readable."""

    pci_gpus: tuple[str, ...] = ()
    nvswitches: tuple[str, ...] = ()
    fabric_manager: FabricManager | None = None
    kernel_log: tuple[str, ...] | None = ()
    kernel_log_source: str = ""
    shm_total_mib: int | None = None
    shm_free_mib: int | None = None
    nr_open: int | None = None
    pid_max: int | None = None
    max_map_count: int | None = None
    interfaces: tuple[Interface, ...] = ()
    nccl_files: dict[str, str] = field(default_factory=dict)
    units: tuple[UnitEnvironment, ...] = ()

    def as_result(self) -> dict[str, Any]:
        return {
            "pci_gpus": list(self.pci_gpus),
            "nvswitches": list(self.nvswitches),
            "fabric_manager": None if self.fabric_manager is None else asdict(self.fabric_manager),
            "kernel_log": self.kernel_log_source,
            "shm_total_mib": self.shm_total_mib,
            "shm_free_mib": self.shm_free_mib,
            "nr_open": self.nr_open,
            "pid_max": self.pid_max,
            "max_map_count": self.max_map_count,
            "interfaces": [asdict(one) for one in self.interfaces],
            "nccl_files": sorted(self.nccl_files),
        }


def topology_said(pairs: Sequence[Pair]) -> str:
    """The paths of all pairs in a few words: ``all pairs NV18``, ``NV4, SYS``."""
    paths = sorted({pair.path for pair in pairs})
    if not paths:
        return ""
    return f"all pairs {paths[0]}" if len(paths) == 1 else f"pairs {', '.join(paths)}"
