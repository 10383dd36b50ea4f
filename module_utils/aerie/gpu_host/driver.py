"""Checks of the driver: its version against a pin and against the CUDA of the locked torch; the fabric manager."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import ErrorKind
from ..release import lockfile
from .facts import DriverFacts, FabricManager, Finding, GpuFacts

DRIVER_OLD = ErrorKind(
    "gpu-host-driver-old",
    "The driver is too old for the CUDA of the locked release: the server would fail at its first kernel, after"
    " loading its weights.",
)
DRIVER_PIN = ErrorKind(
    "gpu-host-driver-pin",
    "Another driver version is loaded than the inventory pins. After an installation the new one is loaded by a"
    " reboot only.",
)
FABRIC_MANAGER = ErrorKind(
    "gpu-host-fabric-manager",
    "The host has NVSwitches and their fabric manager does not run: CUDA fails with error 802 (system not yet"
    " initialized).",
)
FABRIC_VERSION = ErrorKind(
    "gpu-host-fabric-version",
    "The fabric manager is of another version than the driver, and refuses to work with it.",
)
FABRIC_STATE = ErrorKind(
    "gpu-host-fabric-state",
    "A GPU has not joined its NVLink fabric, or joined it with an error: peer-to-peer over NVLink does not work.",
)

# CUDA major -> oldest driver branch that runs it. NVIDIA, "CUDA Compatibility", minor version compatibility, table 1,
# as published in November 2026.
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}

# Packages of a lock that tell the CUDA that torch was built for, in order of trust.
_CUDA_PACKAGES = ("nvidia-cuda-runtime", "cuda-toolkit", "nvidia-cuda-nvrtc")


def cuda_major_of(lock_text: str) -> int | None:
    """CUDA major of a lock: its CUDA runtime's version, the suffix ``-cu12``, or torch's ``+cu130``.

    None: a lock without CUDA (``+cpu``), or an empty one. Raises lock-invalid.
    """
    if not lock_text.strip():
        return None
    lock = lockfile.parse(lock_text)
    for name in _CUDA_PACKAGES:
        version = lock.version_of(name)
        if version:
            return int(version.partition(".")[0])
    for entry in lock.entries:
        suffix = re.fullmatch(r"(?:nvidia-cuda-runtime|nvidia-nccl|nvidia-cudnn)-cu(\d+)", entry.name)
        if suffix:
            return int(suffix.group(1))
    local = re.search(r"\+cu(\d\d)\d", lock.version_of("torch") or "")
    return int(local.group(1)) if local else None


def check_cuda(driver: DriverFacts, cuda_major: int | None) -> list[Finding]:
    """The driver runs programs of ``cuda_major``. None: not checked."""
    if cuda_major is None:
        return []
    branch = int(driver.version.partition(".")[0])
    supported = int(driver.cuda.partition(".")[0]) if driver.cuda else 0
    needed = OLDEST_DRIVER.get(cuda_major)
    if supported >= cuda_major or (needed is not None and branch >= needed):
        return []
    wanted = f"{needed} or newer" if needed else "a newer one"
    return [
        Finding(
            DRIVER_OLD.error(
                f"Driver {driver.version} is too old for CUDA {cuda_major}: {wanted} is needed",
                evidence=[
                    f"the driver supports CUDA up to {driver.cuda or 'unknown'}",
                    f"the locked release is built for CUDA {cuda_major}",
                    *(f"CUDA {major}: driver {oldest} or newer" for major, oldest in OLDEST_DRIVER.items()),
                ],
                next=f"install driver {wanted} (gpu_host_driver_version), or lock a release that is built for an older"
                " CUDA (sglang_install_lock)",
            )
        )
    ]


def check_pin(driver: DriverFacts, pinned: str | None) -> list[Finding]:
    """The loaded driver is exactly the pinned one."""
    if not pinned or driver.version == pinned:
        return []
    return [
        Finding(
            DRIVER_PIN.error(
                f"Driver {pinned} is wanted, {driver.version} is loaded",
                evidence=[
                    f"kernel module: {driver.kernel_module or 'version unknown'}",
                    f"library: {driver.library or 'unknown'}",
                ],
                next="reboot the host when it may be; or gpu_host_reboot_allowed: true; or correct"
                " gpu_host_driver_version",
            )
        )
    ]


def check_fabric(
    driver_version: str, gpus: Sequence[GpuFacts], switches: Sequence[str], manager: FabricManager | None
) -> list[Finding]:
    """The fabric manager where NVSwitch devices are, and every GPU's own word.

    A virtual machine has no NVSwitch devices although its GPUs hang on switches (seen: two H200, 18 links each,
    fabric completed): there the manager runs outside.
    """
    found = _manager(driver_version, switches, manager) if switches else []
    bad = [gpu for gpu in gpus if gpu.fabric_error or gpu.fabric in ("not started", "in progress")]
    if bad:
        found.append(
            Finding(
                FABRIC_STATE.error(
                    f"{len(bad)} of {len(gpus)} GPUs are not part of the NVLink fabric",
                    evidence=[f"{gpu.label}: {gpu.fabric_error or gpu.fabric}" for gpu in bad],
                    next="nvidia-smi -q | grep -A4 Fabric; systemctl status nvidia-fabricmanager",
                )
            )
        )
    return found


def _manager(driver_version: str, switches: Sequence[str], manager: FabricManager | None) -> list[Finding]:
    devices = f"{len(switches)} NVSwitch devices: {', '.join(switches)}"
    state = manager.active if manager else "not-found"
    found = []
    if state != "active":
        found.append(
            Finding(
                FABRIC_MANAGER.error(
                    f"The fabric manager does not run ({state})",
                    evidence=[devices],
                    next=f"install the fabric manager of driver {driver_version}; systemctl enable --now"
                    " nvidia-fabricmanager; journalctl -u nvidia-fabricmanager",
                )
            )
        )
    version = manager.version if manager else None
    if version and driver_version and version != driver_version:
        found.append(
            Finding(
                FABRIC_VERSION.error(
                    f"Fabric manager {version} does not fit driver {driver_version}",
                    evidence=[devices, f"nv-fabricmanager --version: {version}"],
                    next=f"install the fabric manager of version {driver_version} exactly",
                )
            )
        )
    return found
