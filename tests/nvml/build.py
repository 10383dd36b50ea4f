#!/usr/bin/env python3
"""Build the double of libnvidia-ml.so.1 with gcc.

Run as a program it prints the folder to put on the library path.
The result is kept under ``.cache/nvml/<hash of the sources and the command>/`` of the checkout.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent.parent / ".cache" / "nvml"
SONAME = "libnvidia-ml.so.1"
SOURCES = ("nvml.c", "scenario.c", "holders.c")
COMMAND = (
    "gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden",
    f"-Wl,-soname,{SONAME}",
)  # fmt: skip


def library() -> Path:
    """Path of the built library, building it when its sources changed.

    Raises RuntimeError with gcc's words when it cannot be built.
    """
    key = hashlib.sha256(" ".join(COMMAND).encode())
    for name in (*SOURCES, "double.h"):
        key.update((HERE / name).read_bytes())
    target = CACHE / key.hexdigest()[:16] / SONAME
    if target.exists():
        return target
    if shutil.which("gcc") is None:
        raise RuntimeError("the NVML double needs gcc: install the package gcc")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{SONAME}.{os.getpid()}")
    done = subprocess.run(
        [*COMMAND, "-o", str(part), *SOURCES, "-lpthread"],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode != 0:
        raise RuntimeError(f"gcc could not build the NVML double:\n{done.stderr}")
    part.replace(target)
    return target


def preload() -> None:
    """Load the double into this process: a later dlopen of the same soname (pynvml's) gets it."""
    ctypes.CDLL(str(library()), mode=ctypes.RTLD_GLOBAL)


if __name__ == "__main__":
    print(library().parent)
