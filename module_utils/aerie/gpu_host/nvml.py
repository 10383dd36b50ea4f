"""Read GPUs, their health and their topology through pynvml. Thin: what it means is in gpu_host_gpus.

Every question may be unknown to an older driver or to a part (two H200, driver 580.159.04: 18 links, the 19th is
"Invalid Argument"; no GPU is a NUMA node). That is no problem; it is None.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..gpu.driver import Driver, failed, kernel_driver_version, library_file
from ..gpu.readings import MIB
from .facts import DriverFacts, GpuFacts, Instance, Pair

# nvmlGpuTopologyLevel_t, in the words of `nvidia-smi topo -m`.
_PCIE_PATHS = {0: "SELF", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_FABRIC_STATES = {1: "not started", 2: "in progress", 3: "completed"}
# nvmlDeviceGpuRecoveryAction_t, field NVML_FI_DEV_GET_GPU_RECOVERY_ACTION (nvml.h of R570 and later).
_RECOVERY_FIELD = 230
_RECOVERY = {
    0: None, 1: "reset", 2: "reboot", 3: "drain P2P", 4: "drain and reset", 5: "recover IMEX domain",
    6: "bus reset", 7: "reboot",
}  # fmt: skip
_MAX_LINKS = 36
# nvmlGpuP2PCapsIndex_t. Not pynvml's own names: its NVML_P2P_CAPS_INDEX_READ is a tuple (13.615.71).
_P2P_READ = 0
_P2P_NVLINK = 2


class _Asker:
    """Asks one GPU; what cannot be answered becomes None, a lost GPU or a line in ``unreadable``."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.lost = False
        self.unreadable: list[str] = []
        self._absent = (
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_INVALID_ARGUMENT,
            nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        )

    def __call__(self, what: str, ask: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return ask(*arguments)
        except self.nvml.NVMLError as error:
            if error.value == self.nvml.NVML_ERROR_GPU_IS_LOST:
                self.lost = True
            elif error.value not in self._absent:
                self.unreadable.append(f"{what}: {error}")
            return None


def read_driver(driver: Driver) -> DriverFacts:
    """Versions of driver, library and kernel module, and the CUDA that the driver supports."""
    number = _Asker(driver.nvml)("CUDA version", driver.nvml.nvmlSystemGetCudaDriverVersion_v2)
    cuda = None if number is None else f"{number // 1000}.{number % 1000 // 10}"
    return DriverFacts(driver.version, driver.nvml_version, cuda, kernel_driver_version(), library_file())


def read_gpus(driver: Driver, pci_root: Path = Path("/sys/bus/pci/devices")) -> list[GpuFacts]:
    """All GPUs that the driver shows, lost ones too. Raises gpu-nvml-failed when they cannot be counted."""
    nvml = driver.nvml
    try:
        count = int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError as error:
        raise failed("counting GPUs", error) from None
    return [_read_gpu(nvml, index, pci_root) for index in range(count)]


def read_pairs(driver: Driver, gpus: list[GpuFacts]) -> list[Pair]:
    """The path between any two GPUs that are not lost. Two H200: 4 to 18 ms for the pair (November 2026)."""
    nvml = driver.nvml
    ask = _Asker(nvml)
    there = [gpu for gpu in gpus if not gpu.lost]
    handles = {gpu.index: ask("opening the GPU", nvml.nvmlDeviceGetHandleByIndex, gpu.index) for gpu in there}
    pairs = []
    for a in there:
        for b in there:
            one, other = handles[a.index], handles[b.index]
            if a.index >= b.index or one is None or other is None:
                continue
            level = ask("topology", nvml.nvmlDeviceGetTopologyCommonAncestor, one, other)
            nvlink = ask("NVLink", nvml.nvmlDeviceGetP2PStatus, one, other, _P2P_NVLINK)
            read = ask("P2P", nvml.nvmlDeviceGetP2PStatus, one, other, _P2P_READ)
            linked = nvlink == nvml.NVML_P2P_STATUS_OK
            pairs.append(
                Pair(
                    a.index,
                    b.index,
                    nvlinks=min(a.nvlinks_up, b.nvlinks_up) if linked else 0,
                    pcie=_PCIE_PATHS.get(level),
                    p2p=None if read is None else read == nvml.NVML_P2P_STATUS_OK,
                    same_numa=None if a.numa is None or b.numa is None else a.numa == b.numa,
                )
            )
    return pairs


def _read_gpu(nvml: Any, index: int, pci_root: Path) -> GpuFacts:
    ask = _Asker(nvml)
    handle = ask("opening the GPU", nvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return GpuFacts(index, lost=ask.lost, unreadable=tuple(ask.unreadable))
    pci = sysfs_address(ask("PCI", lambda: nvml.nvmlDeviceGetPciInfo(handle).busId))
    memory = ask("memory info", nvml.nvmlDeviceGetMemoryInfo, handle)
    capability = ask("compute capability", nvml.nvmlDeviceGetCudaComputeCapability, handle)
    mode = ask("MIG mode", nvml.nvmlDeviceGetMigMode, handle)
    mig = bool(mode and mode[0])
    remapped = ask("remapped rows", nvml.nvmlDeviceGetRemappedRows, handle)
    retired = ask("retired pages", nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
    up, down = _links(nvml, ask, handle)
    fabric, fabric_error = _fabric(nvml, ask, handle)
    return GpuFacts(
        index,
        uuid=ask("UUID", nvml.nvmlDeviceGetUUID, handle) or "",
        name=ask("name", nvml.nvmlDeviceGetName, handle) or "",
        pci=pci,
        memory_mib=None if memory is None else int(memory.total) // MIB,
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        numa=numa_of(pci, pci_root),
        mig=mig,
        instances=tuple(_instances(nvml, ask, handle)) if mig else (),
        ecc_uncorrected=_ecc(nvml, ask, handle, nvml.NVML_VOLATILE_ECC),
        ecc_uncorrected_lifetime=_ecc(nvml, ask, handle, nvml.NVML_AGGREGATE_ECC),
        rows_remapped=None if remapped is None else int(remapped[0] + remapped[1]),
        # Before Ampere pages were retired instead of rows remapped; pending means the same: a reset is due.
        remap_pending=bool(remapped[2]) if remapped is not None else None if retired is None else bool(retired),
        remap_failed=None if remapped is None else bool(remapped[3]),
        nvlinks_up=up,
        nvlinks_down=down,
        fabric=fabric,
        fabric_error=fabric_error,
        recovery=_recovery(nvml, ask, handle),
        lost=ask.lost,
        unreadable=tuple(ask.unreadable),
    )  # fmt: skip


def sysfs_address(bus_id: str | None) -> str:
    """NVML writes ``00000000:18:00.0``, sysfs and the kernel log ``0000:18:00.0``."""
    domain, _, rest = (bus_id or "").partition(":")
    return f"{int(domain, 16):04x}:{rest.lower()}" if rest else ""


def numa_of(pci: str, root: Path) -> int | None:
    """NUMA node of a PCI device; None where the machine does not say (virtual machines: -1)."""
    try:
        node = int((root / pci / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return None if node < 0 else node


def _ecc(nvml: Any, ask: _Asker, handle: Any, counter: int) -> int | None:
    kind = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    number = ask("ECC errors", nvml.nvmlDeviceGetTotalEccErrors, handle, kind, counter)
    return None if number is None else int(number)


def _links(nvml: Any, ask: _Asker, handle: Any) -> tuple[int, int]:
    states = []
    for link in range(_MAX_LINKS):
        state = ask("NVLink state", nvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            break
        states.append(bool(state))
    return sum(states), len(states) - sum(states)


def _instances(nvml: Any, ask: _Asker, parent: Any) -> list[Instance]:
    found = []
    for row in range(ask("MIG instances", nvml.nvmlDeviceGetMaxMigDeviceCount, parent) or 0):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, row)
        except nvml.NVMLError:  # a gap in the numbers: no such instance
            continue
        uuid = ask("MIG UUID", nvml.nvmlDeviceGetUUID, handle)
        found.append(Instance(row, uuid or "", ask("MIG name", nvml.nvmlDeviceGetName, handle) or ""))
    return found


def _fabric(nvml: Any, ask: _Asker, handle: Any) -> tuple[str | None, str | None]:
    """State of the NVLink fabric and what it failed with; None, None without a fabric."""
    if not hasattr(nvml, "c_nvmlGpuFabricInfo_v2_t"):
        return None, None
    info = nvml.c_nvmlGpuFabricInfo_v2_t()  # its constructor sets the version that NVML checks
    if ask("fabric", nvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(info)) is None:
        return None, None
    failure = str(nvml.NVMLError(info.status)) if info.state == 3 and info.status else None
    return _FABRIC_STATES.get(info.state), failure


def _recovery(nvml: Any, ask: _Asker, handle: Any) -> str | None:
    if not hasattr(nvml, "nvmlDeviceGetFieldValues"):
        return None
    values = ask("recovery action", nvml.nvmlDeviceGetFieldValues, handle, [_RECOVERY_FIELD])
    if not values or values[0].nvmlReturn != nvml.NVML_SUCCESS:
        return None
    action = int(values[0].value.uiVal)
    return _RECOVERY.get(action, f"action {action}")
