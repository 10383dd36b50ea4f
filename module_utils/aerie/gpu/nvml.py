"""Find the GPUs that are meant and read them through pynvml. Thin: what a reading means is in gpu_readings."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import AerieError, ErrorKind
from .driver import Driver, failed, gpus, pci_evidence
from .readings import COMPUTE, GRAPHICS, MPS, GpuProcess, GpuReading, Problem

BAD_SELECTION = ErrorKind(
    "gpu-selection",
    "The option gpus names something that is no index, index:instance or UUID, or is empty although GPUs are used.",
)
NOT_FOUND = ErrorKind(
    "gpu-not-found", "A GPU or MIG instance that was asked for is not among those that the driver shows."
)
COUNT = ErrorKind(
    "gpu-count",
    "The driver shows another number of GPUs than expected: one fell off the bus or was not initialised, a"
    " container sees only some, or the inventory is wrong.",
)
GPU_LOST = ErrorKind(
    "gpu-lost",
    "The driver reports the GPU as lost (fallen off the bus). It comes back with a reset or a reboot, not by waiting.",
)

_INDEX = re.compile(r"\d+")
_INSTANCE = re.compile(r"(\d+):(\d+)")
_UUID = re.compile(r"(GPU|MIG)-\S+")
_NO_MEMORY_V2 = (
    "memory info version 2 is not offered by this driver (it is from R510 on); version 1 counts the driver's"
    " reserve as used, so zero cannot be told from the reserve"
)


@dataclass(frozen=True)
class Target:
    """A GPU or MIG instance to read; ``handle`` is NVML's. ``problem``: it could not even be opened."""

    index: int
    handle: Any = None
    mig_index: int | None = None
    uuid: str = ""
    name: str = ""
    minor: int | None = None
    problem: Problem | None = None


def check_count(driver: Driver, expected: int | None) -> int:
    """Number of GPUs that the driver shows; raises COUNT when it is not the expected one, or none (unless 0)."""
    try:
        found = int(driver.nvml.nvmlDeviceGetCount())
    except driver.nvml.NVMLError as error:
        raise failed("counting GPUs", error) from None
    if found == expected or (expected is None and found):
        return found
    wanted = "at least one GPU" if expected is None else gpus(expected)
    raise COUNT.error(
        f"{wanted} expected, the driver shows {found}",
        evidence=[*_seen(driver, found), pci_evidence()],
        next="nvidia-smi -L; journalctl -k -g 'Xid|fallen off the bus'; or correct expected_count"
        " (0 for a host without GPUs)",
    )


def parse_selection(selection: Sequence[str]) -> list[str]:
    """The words of ``gpus`` as given; raises BAD_SELECTION for a word that names no GPU."""
    for word in selection:
        if not any(pattern.fullmatch(word) for pattern in (_INDEX, _INSTANCE, _UUID)):
            raise BAD_SELECTION.error(
                f"{word!r} in gpus names no GPU",
                evidence=["allowed: an index (3), index:instance (3:0), a UUID (GPU-…, MIG-…)"],
                next="nvidia-smi -L",
            )
    return list(selection)


def find_targets(driver: Driver, selection: Sequence[str] | None, count: int) -> list[Target]:
    """The targets of ``selection`` (None: every GPU), a GPU in MIG mode replaced by its instances.

    A GPU named twice is one target. Raises NOT_FOUND.
    """
    words = [str(index) for index in range(count)] if selection is None else parse_selection(selection)
    targets: dict[tuple[int, int | None], Target] = {}
    for word in words:
        for target in _find(driver, word, count):
            targets.setdefault((target.index, target.mig_index), target)
    return list(targets.values())


def read(driver: Driver, targets: Sequence[Target]) -> list[GpuReading]:
    """One reading of every target. Never raises for a GPU: what fails is in the reading's problems."""
    return [_read_one(driver.nvml, target) for target in targets]


def _find(driver: Driver, word: str, count: int) -> list[Target]:
    nvml = driver.nvml
    instance = _INSTANCE.fullmatch(word)
    try:
        if instance:
            return [_instance(nvml, int(instance.group(1)), int(instance.group(2)))]
        if _INDEX.fullmatch(word):
            return _device(nvml, int(word), nvml.nvmlDeviceGetHandleByIndex(int(word)))
        handle = nvml.nvmlDeviceGetHandleByUUID(word)
        if nvml.nvmlDeviceIsMigDeviceHandle(handle).value:
            return [_instance_of(nvml, handle)]
        return _device(nvml, int(nvml.nvmlDeviceGetIndex(handle)), handle)
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
            index = int(instance.group(1)) if instance else int(word) if _INDEX.fullmatch(word) else -1
            if index < 0:  # by UUID: NVML no longer says which index it had
                raise lost_error(word, [f"NVML says: {error}", *_seen(driver, count)]) from None
            return [Target(index, problem=_problem(nvml, "opening the GPU", error))]
        absent = (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.NVML_ERROR_NOT_SUPPORTED)
        if error.value not in absent:
            raise failed(f"opening GPU {word}", error) from None
        raise NOT_FOUND.error(
            f"GPU {word} is not there",
            evidence=[f"NVML says: {error}", *_seen(driver, count)],
            next="nvidia-smi -L, then correct gpus",
        ) from None


def lost_error(label: str, evidence: Sequence[str]) -> AerieError:
    """The error for GPUs that are gone."""
    return GPU_LOST.error(
        f"The driver has lost {label}",
        evidence=evidence,
        next="journalctl -k -g 'Xid|fallen off the bus'; then drain the host and reboot it"
        " (nvidia-smi --gpu-reset -i INDEX if it is still shown)",
    )


def _device(nvml: Any, index: int, handle: Any) -> list[Target]:
    """The GPU itself, or its MIG instances. MIG mode without instances: the GPU, whose memory must be readable."""
    if _mig_mode(nvml, handle):
        instances = [_instance(nvml, index, row) for row in _mig_rows(nvml, handle)]
        if instances:
            return instances
    return [Target(index, handle, None, *_names(nvml, handle), _minor(nvml, handle))]


def _mig_mode(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            return False
        raise


def _mig_rows(nvml: Any, handle: Any) -> list[int]:
    rows = []
    for row in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, row)
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_NOT_FOUND:
                raise
            continue
        rows.append(row)
    return rows


def _instance(nvml: Any, index: int, row: int) -> Target:
    parent = nvml.nvmlDeviceGetHandleByIndex(index)
    handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, row)
    return Target(index, handle, row, *_names(nvml, handle), _minor(nvml, parent))


def _instance_of(nvml: Any, handle: Any) -> Target:
    """The target of a MIG handle that was found by UUID: NVML does not say its number, so it is looked up."""
    parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    index, uuid = int(nvml.nvmlDeviceGetIndex(parent)), nvml.nvmlDeviceGetUUID(handle)
    for row in _mig_rows(nvml, parent):
        target = _instance(nvml, index, row)
        if target.uuid == uuid:
            return target
    raise nvml.NVMLError(nvml.NVML_ERROR_NOT_FOUND)


def _names(nvml: Any, handle: Any) -> tuple[str, str]:
    return nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)


def _minor(nvml: Any, handle: Any) -> int | None:
    try:
        return int(nvml.nvmlDeviceGetMinorNumber(handle))
    except nvml.NVMLError:
        return None


def _seen(driver: Driver, count: int) -> list[str]:
    """One line a GPU and MIG instance, for evidence."""
    nvml, lines = driver.nvml, []
    for index in range(count):
        try:
            for target in _device(nvml, index, nvml.nvmlDeviceGetHandleByIndex(index)):
                mig = "" if target.mig_index is None else f":{target.mig_index}"
                lines.append(f"the driver shows {index}{mig}: {target.name}, {target.uuid}")
        except nvml.NVMLError as error:
            lines.append(f"the driver shows {index}: {error}")
    return lines


def _read_one(nvml: Any, target: Target) -> GpuReading:
    if target.problem:
        return GpuReading(
            target.index, target.uuid, target.name, target.mig_index, problems=(target.problem,)
        )
    problems: list[Problem] = []
    memory = _memory(nvml, target.handle, problems)
    processes = _processes(nvml, target.handle, problems)
    return GpuReading(
        target.index, target.uuid, target.name, target.mig_index, target.minor,
        total=memory and int(memory.total), reserved=memory and int(memory.reserved),
        used=None if memory is None else int(memory.used),
        processes=tuple(processes), problems=tuple(problems),
    )  # fmt: skip


def _memory(nvml: Any, handle: Any, problems: list[Problem]) -> Any:
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH):
            problems.append(Problem(_NO_MEMORY_V2, permanent=True))
        else:
            problems.append(_problem(nvml, "memory info", error))
        return None


def _processes(nvml: Any, handle: Any, problems: list[Problem]) -> list[GpuProcess]:
    """The three lists. Where MPS or graphics lists do not exist, their processes' memory still shows as used."""
    lists: list[tuple[str, Callable[[Any], Any]]] = [
        (COMPUTE, nvml.nvmlDeviceGetComputeRunningProcesses_v3),
        (MPS, nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3),
        (GRAPHICS, nvml.nvmlDeviceGetGraphicsRunningProcesses_v3),
    ]
    found: list[GpuProcess] = []
    for kind, ask in lists:
        try:
            found += [GpuProcess(int(entry.pid), kind, entry.usedGpuMemory) for entry in ask(handle)]
        except nvml.NVMLError as error:
            absent = error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            if kind == COMPUTE or not absent:
                problems.append(_problem(nvml, f"{kind} process list", error))
    return found


def _problem(nvml: Any, doing: str, error: Any) -> Problem:
    """Permanent: what a later look cannot change. Anything else (timeout, unknown) is looked at again."""
    permanent = error.value in (
        nvml.NVML_ERROR_NOT_SUPPORTED,
        nvml.NVML_ERROR_NO_PERMISSION,
        nvml.NVML_ERROR_RESET_REQUIRED,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    )
    return Problem(f"{doing}: {error}", permanent, lost=error.value == nvml.NVML_ERROR_GPU_IS_LOST)
