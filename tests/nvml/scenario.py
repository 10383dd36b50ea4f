"""Write scenario files for the NVML double: dataclasses in, one line an object out. Format: README.md."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

MIB = 1 << 20
# One NVIDIA H200, driver 580.159, as nvidia-ml-py read it (shared samples, 2026).
H200_TOTAL = 150754820096
H200_RESERVED = 644939776


@dataclass
class Gpu:
    """One GPU. ``handle``, ``memory`` and ``processes`` are `ok`, an error name or a number of nvmlReturn_t; bytes."""

    uuid: str = ""
    name: str = "NVIDIA H200"
    total: int = H200_TOTAL
    reserved: int = H200_RESERVED
    pci: str = ""
    serial: str = ""
    handle: str = "ok"
    memory: str = "ok"
    processes: str = "ok"
    lost: str = "no"  # yes: no handle can be had; late: a handle can, every query fails
    mig: str = "no"  # yes, no, none (the part has no MIG)
    ecc: bool = True
    ecc_corrected: int = 0
    ecc_uncorrected: int = 0
    remap_corrected: int = 0
    remap_uncorrected: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    nvlinks: int = 0
    nvlinks_down: int = 0
    cc_major: int = 9
    cc_minor: int = 0
    numa: int = -1
    fabric_state: int = -1  # nvmlGpuFabricState_t; -1: no fabric (the call is not supported)
    fabric_status: str = "ok"


@dataclass
class Mig:
    """One MIG instance of the GPU at index ``gpu``."""

    gpu: int
    index: int
    uuid: str = ""
    name: str = "NVIDIA H200 MIG 1g.18gb"
    gi: int = 7
    ci: int = 0
    total: int = 18 * 1024 * MIB
    reserved: int = 0
    memory: str = "ok"


@dataclass
class Holder:
    """What holds memory on one GPU (or MIG instance): a pid, every process of a cgroup, or always.

    bytes: of each process. overhead: used, but attributed to no process (about 10 MB a process on the H200).
    match: of a cgroup's processes only those whose command line contains it. free_ms: from death to free;
    None: never. listed: in the process lists at all; listed_after_death: also until the memory is free.
    """

    gpu: int = 0
    pid: int = 0
    cgroup: str = ""
    always: bool = False
    bytes: int = 1624 * MIB
    overhead: int = 0
    mig: int = -1
    match: str = ""
    kind: str = "compute"
    listed: bool = True
    attributed: bool = True
    listed_after_death: bool = True
    free_ms: int | None = 0
    id: str = ""


@dataclass
class Scenario:
    """A machine's driver and GPUs; ``init`` is the result of nvmlInit."""

    gpus: list[Gpu] = field(default_factory=list)
    migs: list[Mig] = field(default_factory=list)
    holders: list[Holder] = field(default_factory=list)
    driver: str = "580.159.03"
    nvml: str = "13.580.159.03"
    cuda: int = 13000
    init: str = "ok"
    memory_v2: bool = True
    topology: int = 50  # nvmlGpuTopologyLevel_t between two GPUs: 40 same NUMA node, 50 across the system

    def text(self) -> str:
        lines = [
            "# NVML double: see tests/nvml/README.md",
            _line("system", self, skip={"gpus", "migs", "holders"}),
        ]
        for index, gpu in enumerate(self.gpus):
            filled = {
                "uuid": gpu.uuid or gpu_uuid(index),
                "pci": gpu.pci or f"00000000:{0x18 + index:02X}:00.0",
            }
            lines.append(_line("gpu", gpu, filled))
        for mig in self.migs:
            lines.append(_line("mig", mig, {"uuid": mig.uuid or mig_uuid(mig.gpu, mig.index)}))
        for row, holder in enumerate(self.holders):
            source = "always" if holder.always else "cgroup" if holder.cgroup else "pid"
            free = "never" if holder.free_ms is None else str(holder.free_ms)
            filled = {"id": holder.id or f"holder{row}", "source": source, "free_ms": free}
            lines.append(_line("holder", holder, filled, skip={"always"}))
        return "\n".join(lines) + "\n"

    def write(self, path: Path, *, forget: bool = False) -> Path:
        """Replace the scenario at once: readers see the old or the new. forget: also the processes seen."""
        part = path.with_name(path.name + ".part")
        part.write_text(self.text())
        part.replace(path)
        if forget:
            path.with_name(path.name + ".state").unlink(missing_ok=True)
        return path


def gpu_uuid(index: int) -> str:
    """The UUID that a GPU without one of its own gets."""
    return f"GPU-00000000-0000-4000-8000-{index:012d}"


def mig_uuid(gpu: int, index: int) -> str:
    """The UUID that a MIG instance without one of its own gets."""
    return f"MIG-00000000-0000-4000-8000-{gpu:06d}{index:06d}"


def _line(word: str, item: Any, filled: dict[str, Any] | None = None, skip: set[str] | None = None) -> str:
    values = {f.name: getattr(item, f.name) for f in fields(item) if f.name not in (skip or set())}
    values.update(filled or {})
    return " ".join([word, *(f"{key}={_text(value)}" for key, value in values.items() if value != "")])


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return quote(str(value), safe="/:.-_@")
