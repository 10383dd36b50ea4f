"""Run this Python's pip to fetch wheels for CPython 3.11, and to ask what it could fetch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from locks import Package, Wheel

MB = 1e6
HEARTBEAT = 5.0  # seconds between two lines while one run of pip lasts
LAST_GLIBC_MINOR = 36  # Debian bookworm, where the engine runs
PROBE_TIMEOUT = 60.0


class PipFailedError(Exception):
    """pip ended with an error; its last lines are in the message."""


def target_options(architecture: str) -> list[str]:
    """pip's options for CPython 3.11 and glibc up to 2.36; every manylinux tag, since pip implies none."""
    options = ["--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp"]
    for abi in ("cp311", "abi3", "none"):
        options += ["--abi", abi]
    platforms = [f"manylinux_2_{minor}" for minor in range(LAST_GLIBC_MINOR, 4, -1)]
    for name in [*platforms, "manylinux2014", "manylinux2010", "manylinux1", "linux"]:
        options += ["--platform", f"{name}_{architecture}"]
    return options


def has_cpu_torch(package: Package) -> bool:
    """Whether this machine's pip offers the CPU build (``2.13.0+cpu``). Downloads nothing."""
    command = [sys.executable, "-m", "pip", "index", "versions", package.name, "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--python-version", "3.11", "--platform", "manylinux_2_28_x86_64"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return False
    return re.search(rf"(^|[\s,(]){re.escape(package.version)}\+cpu([\s,)]|$)", answer.stdout) is not None


def download(group: list[tuple[Package, Wheel]], directory: Path, say: Callable[[str], None]) -> None:
    """Fetch these wheels into ``directory`` with ``pip download``; PipFailedError says why it could not."""
    requirements = directory / "requirements.txt"
    requirements.write_text(
        "".join(
            f"{package.name}=={package.version} --hash=sha256:{wheel.sha256}\n" for package, wheel in group
        )
    )
    log = directory / "pip.log"
    architectures = {wheel.architecture for _, wheel in group} - {"any"}
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    command += [
        "--require-hashes",
        "--progress-bar",
        "off",
        "--dest",
        str(directory),
        "-r",
        str(requirements),
    ]
    command += target_options(architectures.pop() if architectures else "x86_64")
    with log.open("w") as stream:
        child = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(directory)}
        )
        try:
            _watch(child, directory, sum(wheel.size for _, wheel in group), say)
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()
    if child.returncode != 0:
        raise PipFailedError(_explain(child.returncode, log.read_text(errors="replace"), group))


def download_lock(lock: Path, directory: Path) -> bool:
    """Fetch the pure-Python wheels of a small lock into ``directory``; False when all are there already."""
    pins = re.findall(r"^([A-Za-z0-9_.-]+)==([^\s\\;]+)", lock.read_text(), re.MULTILINE)
    names = [f"{name.replace('-', '_')}-{version}-*.whl" for name, version in pins]
    if all(any(directory.glob(name)) for name in names):
        return False
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--quiet"]
    command += ["--require-hashes", "--only-binary=:all:", "--dest", str(directory), "-r", str(lock)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise PipFailedError(_explain(done.returncode, done.stdout, []))
    return True


def _watch(child: subprocess.Popen, directory: Path, expected: int, say: Callable[[str], None]) -> None:
    """Wait for pip, with a line from time to time that shows how much has arrived."""
    next_line = time.monotonic() + HEARTBEAT
    while True:
        try:
            child.wait(timeout=0.2)
            return
        except subprocess.TimeoutExpired:
            if time.monotonic() >= next_line:
                next_line += HEARTBEAT
                arrived = min(_bytes_in(directory), expected)
                say(f"    {arrived / MB:.0f} of {expected / MB:.0f} MB")


def _bytes_in(directory: Path) -> int:
    """Bytes of wheels below a directory that another process is writing to."""
    total = 0
    for path in directory.rglob("*.whl"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # moved meanwhile
            continue
    return total


def _explain(returncode: int, log: str, group: list[tuple[Package, Wheel]]) -> str:
    """What failed, pip's last lines, what to type next."""
    names = ", ".join(f"{package.name}=={package.version}" for package, _ in group) or "the tools"
    last = "\n".join(f"  {line}" for line in log.strip().splitlines()[-6:])
    return (
        f"pip download ended with {returncode} for {names}\n{last}\n"
        "next: see that pip works here (pip download --no-deps six), then run this again; it resumes"
    )
