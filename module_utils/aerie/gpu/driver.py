"""Open the NVIDIA driver's library through pynvml, and say exactly why when that cannot be done.

pynvml turns every failure to load ``libnvidia-ml.so.1`` into "library not found", a damaged file too; so the
library is loaded here first, where the loader's own words are still known.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import AerieError, ErrorKind

SONAME = "libnvidia-ml.so.1"
KERNEL_VERSION = Path("/proc/driver/nvidia/version")

PYNVML_MISSING = ErrorKind(
    "gpu-pynvml-missing",
    "The Python that runs the module has no pynvml. It belongs to the tools environment that sglang_install"
    " makes; the task's interpreter is another one.",
)
LIBRARY_MISSING = ErrorKind(
    "gpu-driver-library-missing",
    "libnvidia-ml.so.1 is not on this host, so there is no NVIDIA driver, but GPUs are expected.",
)
LIBRARY_BROKEN = ErrorKind(
    "gpu-driver-library-broken",
    "libnvidia-ml.so.1 is there and cannot be loaded: a damaged file, another architecture or a missing dependency.",
)
NOT_LOADED = ErrorKind(
    "gpu-driver-not-loaded",
    "The driver's library is there, its kernel module is not loaded: not built for this kernel, blacklisted,"
    " refused by secure boot, or no GPU answered.",
)
MISMATCH = ErrorKind(
    "gpu-driver-mismatch",
    "The kernel runs another driver version than the installed library: the driver was upgraded (often by"
    " unattended upgrades) and the old kernel module is still loaded.",
)
NVML_FAILED = ErrorKind(
    "gpu-nvml-failed", "NVML could not be opened or asked, for a reason other than the named ones."
)


@dataclass(frozen=True)
class Driver:
    """An opened NVML. ``nvml`` is the pynvml module; close it with :func:`close`."""

    nvml: Any
    version: str
    nvml_version: str


def library_missing() -> bool:
    """True when the host has no driver library at all. Raises LIBRARY_BROKEN when there is one that fails to load."""
    try:
        ctypes.CDLL(SONAME)
    except OSError as error:
        words = str(error)
        if words.startswith(f"{SONAME}: cannot open shared object file: No such file"):
            return True
        raise LIBRARY_BROKEN.error(
            "The NVIDIA driver library cannot be loaded",
            evidence=[words],
            next=f"ldconfig -p | grep {SONAME}; reinstall the driver's library package",
        ) from None
    return False


def import_pynvml(tools_dir: str = "") -> Any:
    """The pynvml module of nvidia-ml-py; raises PYNVML_MISSING with the interpreter's path.

    tools_dir: a virtual environment to look into when the interpreter has none. pynvml is one pure Python file, so any
    interpreter can import it from there, and a task needs no interpreter of its own that may not be installed yet.
    """
    looked = (
        [str(path) for path in sorted(Path(tools_dir).glob("lib/python3*/site-packages"))]
        if tools_dir
        else []
    )
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        for folder in looked:
            sys.path.append(folder)
            with contextlib.suppress(ImportError):
                return importlib.import_module("pynvml")
            sys.path.remove(folder)
        raise PYNVML_MISSING.error(
            "pynvml cannot be imported",
            evidence=[
                f"interpreter: {sys.executable}",
                str(error),
                *(f"not in {folder} either" for folder in looked),
            ],
            next="run the role sglang_install, and give the task its tools Python"
            " (vars: ansible_python_interpreter: /opt/sglang/tools/bin/python)",
        ) from None


def open_driver(nvml: Any) -> Driver:
    """nvmlInit and the two versions; raises NOT_LOADED, MISMATCH or NVML_FAILED."""
    try:
        nvml.nvmlInit()
        return Driver(nvml, nvml.nvmlSystemGetDriverVersion(), nvml.nvmlSystemGetNVMLVersion())
    except nvml.NVMLError as error:
        raise _init_error(nvml, error) from None


def close(driver: Driver) -> None:
    """nvmlShutdown; a driver that went away under us has nothing left to close."""
    with contextlib.suppress(driver.nvml.NVMLError):
        driver.nvml.nvmlShutdown()


def failed(doing: str, error: Exception) -> AerieError:
    """The error for an NVML call that failed for no named reason."""
    return NVML_FAILED.error(
        f"NVML failed: {doing}",
        evidence=[f"NVML says: {error}"],
        next="nvidia-smi; journalctl -k -g 'NVRM|Xid'",
    )


def pci_gpus(root: Path = Path("/sys/bus/pci/devices")) -> list[str]:
    """PCI addresses of NVIDIA display and 3D controllers (class 0x0300, 0x0302), whatever the driver says."""
    found = []
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        try:
            vendor = (folder / "vendor").read_text().strip()
            device_class = (folder / "class").read_text().strip()
        except OSError:
            continue
        if vendor == "0x10de" and device_class[:6] in ("0x0300", "0x0302"):
            found.append(folder.name)
    return found


def gpus(number: int) -> str:
    """``1 GPU``, ``8 GPUs``."""
    return f"{number} GPU{'' if number == 1 else 's'}"


def pci_evidence() -> str:
    """One line: what PCI shows."""
    seen = pci_gpus()
    return f"PCI shows {gpus(len(seen))} of NVIDIA{': ' + ', '.join(seen) if seen else ''}"


def kernel_driver_version(path: Path = KERNEL_VERSION) -> str | None:
    """Version of the loaded kernel module; None when none is loaded."""
    try:
        words = path.read_text()
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", words)
    return found.group(1) if found else words.splitlines()[0]


def library_file() -> str:
    """The file behind the loaded library: the driver's version is in its name."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        maps = ""
    found = re.search(rf"(/\S*/{re.escape(SONAME.removesuffix('.1'))}\S*)$", maps, re.MULTILINE)
    return str(Path(found.group(1)).resolve()) if found else SONAME


def _init_error(nvml: Any, error: Any) -> AerieError:
    loaded = kernel_driver_version()
    evidence = [
        f"NVML says: {error}",
        f"kernel module: {loaded or 'not loaded'}",
        f"library: {library_file()}",
    ]
    if error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return MISMATCH.error(
            "The driver in the kernel and its library are of different versions",
            evidence=evidence,
            next="reboot the host, or stop everything that uses the GPUs and reload the modules:"
            " modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && modprobe nvidia",
        )
    if error.value == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return NOT_LOADED.error(
            "The NVIDIA kernel driver is not loaded",
            evidence=[*evidence, pci_evidence()],
            next="modprobe nvidia; dkms status; journalctl -k -g 'NVRM|nvidia'",
        )
    return failed("nvmlInit", error)
