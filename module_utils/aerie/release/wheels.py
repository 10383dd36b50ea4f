"""Directories of wheels: what a lock needs of them, and how much disk an install takes."""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import ErrorKind
from .lockfile import Lock, Locked, normalised

WHEELS_MISSING = ErrorKind(
    "wheels-missing",
    "The directory of wheels on the host does not hold every package that the lock names, or is not there.",
)
DISK_FULL = ErrorKind(
    "disk-too-full",
    "The file system that the release goes to has less room than the install needs. Nothing was written.",
)

MIB = 1 << 20
# Byte-code and file system blocks on top of what the wheels unpack to. Measured on the CPU engine's environment
# (SGLang 0.5.23, November 2026): 1271 MB unpacked, 353 MB of byte-code, 1697 MiB on disk.
OVERHEAD = 1.45
# What an install from an index is assumed to need when the inventory does not say: torch with CUDA and its
# libraries unpack to about 9 GiB and are downloaded next to that; without them it is a fraction.
INDEX_CUDA_MIB = 20480
INDEX_PLAIN_MIB = 4096
TOOLS_MIB = 64

_FILE = re.compile(r"^(?P<name>.+?)-(?P<version>[0-9][^-]*)(-.+\.whl|\.tar\.gz|\.zip)$")


def find_wheels(lock: Lock, directories: Iterable[Path]) -> dict[Locked, Path]:
    """The file for each entry of the lock that the directories hold."""
    files: dict[tuple[str, str], Path] = {}
    for directory in directories:
        for path in sorted(directory.glob("*")):
            match = _FILE.match(path.name)
            if match:
                # "==2.13.0" also takes the local version 2.13.0+cpu (PEP 440); the hash decides which file it is.
                for version in (match["version"], match["version"].partition("+")[0]):
                    files.setdefault((normalised(match["name"]), _plain(version)), path)
    found = {entry: files.get((entry.name, _plain(entry.version))) for entry in lock.entries}
    return {entry: path for entry, path in found.items() if path is not None}


def require_wheels(lock: Lock, wheelhouse: Path, extra: Sequence[Path]) -> dict[Locked, Path]:
    """Like find_wheels, but raises WHEELS_MISSING naming every package that is not there.

    Entries with a marker may be for another platform, so pip decides about those.
    """
    if not wheelhouse.is_dir():
        raise WHEELS_MISSING.error(
            f"the wheelhouse {wheelhouse} is not a directory on the host",
            next="copy the wheels there, or set sglang_install_wheelhouse",
        )
    found = find_wheels(lock, [wheelhouse, *extra])
    missing = [
        f"{entry.name}=={entry.version}" for entry in lock.entries if entry not in found and not entry.marker
    ]
    if missing:
        raise WHEELS_MISSING.error(
            f"{len(missing)} of {len(lock.entries)} packages are not in {wheelhouse}",
            evidence=missing[:20] + ([f"… and {len(missing) - 20} more"] if len(missing) > 20 else []),
            next=f"pip download --no-deps --require-hashes -r LOCK -d {wheelhouse}",
        )
    return found


def unpacked_mib(wheels: Iterable[Path]) -> int:
    """MiB that installing these wheels takes on disk, byte-code included."""
    total = 0
    for wheel in wheels:
        try:
            with zipfile.ZipFile(wheel) as archive:
                total += sum(item.file_size for item in archive.infolist())
        except (OSError, zipfile.BadZipFile):
            continue  # pip says what is wrong with it
    return int(total * OVERHEAD / MIB) + 1


def index_mib(lock: Lock) -> int:
    """MiB that an install of this lock from an index is assumed to need."""
    cuda = any(entry.name.startswith("nvidia-") for entry in lock.entries if entry.name != "nvidia-ml-py")
    if len(lock.entries) < 5 and not cuda:
        return TOOLS_MIB
    return INDEX_CUDA_MIB if cuda else INDEX_PLAIN_MIB


def free_mib(path: Path) -> int:
    """Free MiB on the file system that ``path`` is or will be on."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free // MIB


def require_space(path: Path, needed_mib: int) -> None:
    """Raises DISK_FULL, with both figures, when less than ``needed_mib`` is free where ``path`` goes."""
    free = free_mib(path)
    if free < needed_mib:
        raise DISK_FULL.error(
            f"{path} needs {needed_mib} MiB and has {free} MiB free",
            evidence=[f"needed: {needed_mib} MiB", f"free:   {free} MiB", f"short:  {needed_mib - free} MiB"],
            next=f"df -h {path.anchor}; make room there, or set sglang_install_prefix to a larger file system",
        )


def _plain(version: str) -> str:
    """A version for comparing file names with pins: local parts spelled alike, trailing zeros dropped."""
    return re.sub(r"(\.0)+$", "", re.sub(r"[-_+]", "+", version.lower()))
