"""Checks of the GPUs themselves: number, model, memory, health, links."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from ..errors import ErrorKind
from ..gpu.driver import gpus as said
from ..gpu.nvml import COUNT, lost_error
from .facts import CAUTION, Finding, GpuFacts

MODEL = ErrorKind("gpu-host-model", "A GPU is of another model than the inventory expects on this host.")
MEMORY = ErrorKind(
    "gpu-host-memory",
    "A GPU has less memory than the inventory expects, or it cannot be read (unified memory, MIG mode).",
)
ECC = ErrorKind(
    "gpu-host-ecc",
    "Uncorrectable memory errors since the driver was loaded. The processes that met them were ended; until the GPU is"
    " reset more may follow.",
)
REMAP_PENDING = ErrorKind(
    "gpu-host-remap-pending",
    "A memory row (before Ampere: a page) is to be replaced and will be only when the GPU is reset.",
)
REMAP_FAILED = ErrorKind(
    "gpu-host-remap-failed",
    "A broken memory row could not be replaced. The GPU is to be exchanged.",
)
RECOVERY = ErrorKind(
    "gpu-host-recovery", "The driver says that the GPU needs a recovery action before it is used again."
)
UNREADABLE = ErrorKind("gpu-host-unreadable", "The driver did not answer a question about a GPU's health.")
LINK_DOWN = ErrorKind(
    "gpu-host-nvlink-down",
    "Some NVLinks of a GPU are down while others are up. Bridges leave links unused and that is fine; on a machine"
    " with NVSwitch every link should be up.",
)
PCI_COUNT = ErrorKind(
    "gpu-host-pci-count",
    "PCI shows more NVIDIA GPUs than the driver: one was not initialised or is bound to another driver (passed to a"
    " virtual machine).",
)


def check_count(gpus: Sequence[GpuFacts], pci: Sequence[str], expected: int | None) -> list[Finding]:
    """The number of GPUs that the driver shows. expected None: not checked, but PCI's number is compared."""
    shown = [f"the driver shows {gpu.index}: {gpu.name or 'unknown'}, {gpu.uuid}" for gpu in gpus]
    missing = [address for address in pci if address not in {gpu.pci for gpu in gpus}]
    pci_line = f"PCI shows {said(len(pci))} of NVIDIA{': ' + ', '.join(pci) if pci else ''}"
    if expected is not None and len(gpus) != expected:
        evidence = [*shown, pci_line]
        if pci and len(missing) < len(pci):
            evidence += [f"on PCI and not shown by the driver: {address}" for address in missing]
        return [
            Finding(
                COUNT.error(
                    f"{said(expected)} expected, the driver shows {len(gpus)}",
                    evidence=evidence,
                    next="nvidia-smi -L; journalctl -k -g 'Xid|fallen off the bus'; or correct gpu_host_expected_count"
                    " (0 for a host without GPUs)",
                )
            )
        ]
    if expected is None and len(pci) > len(gpus):
        return [
            Finding(
                PCI_COUNT.error(
                    f"PCI shows {said(len(pci))} of NVIDIA, the driver {len(gpus)}",
                    evidence=[*shown, pci_line],
                    next="journalctl -k -g 'NVRM|nvidia'; set gpu_host_expected_count",
                ),
                CAUTION,
            )
        ]
    return []


def check_model(gpus: Sequence[GpuFacts], model: str | None) -> list[Finding]:
    """Every GPU's name matches the glob ``model`` (without regard to case; a plain word may stand anywhere)."""
    if not model:
        return []
    glob = model if any(sign in model for sign in "*?[") else f"*{model}*"
    wrong = [gpu for gpu in gpus if not gpu.lost and not fnmatch.fnmatch(gpu.name.lower(), glob.lower())]
    if not wrong:
        return []
    return [
        Finding(
            MODEL.error(
                f"{said(len(wrong))} of another model than {model!r}",
                evidence=[gpu.label for gpu in wrong],
                next="nvidia-smi -L; correct gpu_host_expected_model, or take the host out of the inventory",
            )
        )
    ]


def check_memory(gpus: Sequence[GpuFacts], expected_mib: int | None) -> list[Finding]:
    """Every GPU has at least ``expected_mib`` MiB."""
    if not expected_mib:
        return []
    wrong = [gpu for gpu in gpus if not gpu.lost and (gpu.memory_mib or 0) < expected_mib]
    if not wrong:
        return []
    return [
        Finding(
            MEMORY.error(
                f"{said(len(wrong))} with less than {expected_mib} MiB",
                evidence=[
                    f"{gpu.label}: {'memory cannot be read' if gpu.memory_mib is None else f'{gpu.memory_mib} MiB'}"
                    for gpu in wrong
                ],
                next="nvidia-smi; correct gpu_host_expected_memory_mib",
            )
        )
    ]


def check_health(gpus: Sequence[GpuFacts]) -> list[Finding]:
    """Lost GPUs, memory errors, pending repairs, links. Repaired rows and the lifetime count are no problem.

    Seen on a healthy H200 in use: 24 uncorrected errors in its lifetime, 3 rows remapped, 0 since the driver loaded.
    """
    findings = []
    lost = [gpu for gpu in gpus if gpu.lost]
    if lost:
        labels = ", ".join(f"GPU {gpu.index}" for gpu in lost)
        findings.append(Finding(lost_error(labels, [gpu.label for gpu in lost])))
    for gpu in gpus:
        if not gpu.lost:
            findings += _health(gpu)
    return findings


def _health(gpu: GpuFacts) -> list[Finding]:
    found = []
    reset = f"drain the host, then nvidia-smi --gpu-reset -i {gpu.index} or a reboot"
    if gpu.remap_failed:
        found.append(
            Finding(
                REMAP_FAILED.error(
                    f"A memory row of {gpu.label} could not be replaced",
                    evidence=[f"rows remapped so far: {gpu.rows_remapped}"],
                    next=f"nvidia-smi -q -d ROW_REMAPPER -i {gpu.index}; have the GPU exchanged",
                )
            )
        )
    if gpu.remap_pending:
        found.append(
            Finding(
                REMAP_PENDING.error(
                    f"{gpu.label} waits for a reset to replace a memory row",
                    evidence=[f"rows remapped so far: {gpu.rows_remapped}"],
                    next=reset,
                )
            )
        )
    if gpu.ecc_uncorrected:
        found.append(
            Finding(
                ECC.error(
                    f"{gpu.label} had {gpu.ecc_uncorrected} uncorrectable memory errors since the driver was loaded",
                    evidence=[f"in its lifetime: {gpu.ecc_uncorrected_lifetime}"],
                    next=f"nvidia-smi -q -d ECC -i {gpu.index}; {reset}",
                )
            )
        )
    if gpu.recovery:
        found.append(
            Finding(
                RECOVERY.error(
                    f"The driver wants {gpu.label} recovered: {gpu.recovery}",
                    evidence=["NVML field NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"],
                    next=reset,
                )
            )
        )
    if gpu.nvlinks_up and gpu.nvlinks_down:
        found.append(
            Finding(
                LINK_DOWN.error(
                    f"{gpu.nvlinks_down} of {gpu.nvlinks_up + gpu.nvlinks_down} NVLinks of {gpu.label} are down",
                    next=f"nvidia-smi nvlink -s -i {gpu.index}",
                ),
                CAUTION,
            )
        )
    if gpu.unreadable:
        found.append(
            Finding(
                UNREADABLE.error(
                    f"Not everything about {gpu.label} could be read",
                    evidence=list(gpu.unreadable),
                    next=f"nvidia-smi -q -i {gpu.index}",
                ),
                CAUTION,
            )
        )
    return found
