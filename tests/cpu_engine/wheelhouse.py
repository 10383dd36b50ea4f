#!/usr/bin/env python3
"""Fill a directory with every wheel of the CPU engine, for Python 3.11 whatever Python runs this.

    python wheelhouse.py [--directory .cache/wheelhouse/cpu-engine] [--release 0.5.23 ...] [--torch
    auto|cpu|cuda]

Afterwards the directory holds the wheels, `lock.txt` (with `lock-<release>.txt` for other releases) and
`wheelhouse.json`, which says what was chosen. Install from it without any network:

    pip install --no-index --find-links DIRECTORY --no-deps --require-hashes -r DIRECTORY/lock.txt

Which torch: the CPU build where this machine's pip has it (asked with ``pip index versions``, which
downloads nothing), else the registry's CUDA build, which is about seven times the download. The choice is
printed and can be forced. pip runs with the machine's own configuration; the hashes decide what is
accepted.

A complete directory is left alone (sizes and times of change are compared; --verify reads all bytes again).
What a killed run left is used: a wheel appears under its name only when it is whole and its hash is right.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import build_wheel
from locks import (
    ARCHITECTURES,
    CPU,
    CUDA,
    DEFAULT_RELEASE,
    HERE,
    Package,
    Table,
    Wheel,
    load_table,
    lock_name,
    render_lock,
)
from pip_download import PipFailedError, download, download_lock, has_cpu_torch

DEFAULT_DIRECTORY = HERE.parent.parent / ".cache" / "wheelhouse" / "cpu-engine"
# Every host also has the small tools environment; its wheels lie in the same directory.
TOOLS_LOCK = HERE.parent.parent / "roles" / "sglang_install" / "files" / "tools-lock.txt"
MANIFEST = "wheelhouse.json"
PART = ".part-"
BATCH_BYTES = 12_000_000  # small wheels share one pip run, since starting pip costs a second
BATCH_COUNT = 20
SPARE_BYTES = 200_000_000  # left free on the disk
MB = 1e6


class WheelhouseError(Exception):
    """What failed, with the command to type next; printed as it is."""


@dataclass
class Wheelhouse:
    """A directory of wheels and what is known about the files in it.

    ``known``: file name -> [size, mtime_ns, sha256], as read when the file was last hashed.
    """

    directory: Path
    torch: str | None = None
    releases: list[str] = field(default_factory=list)
    known: dict[str, list] = field(default_factory=dict)

    @classmethod
    def load(cls, directory: Path) -> Wheelhouse:
        """Read the manifest; a missing or broken one means that nothing is known."""
        try:
            raw = json.loads((directory / MANIFEST).read_text())
            return cls(directory, raw["torch"], raw["releases"], raw["files"])
        except (OSError, ValueError, KeyError, TypeError):
            return cls(directory)

    def save(self) -> None:
        """Write the manifest, whole or not at all."""
        content = {"torch": self.torch, "releases": self.releases, "files": self.known}
        write_atomically(self.directory / MANIFEST, json.dumps(content, indent=1, sort_keys=True) + "\n")

    def holds(self, wheel: Wheel, *, reread: bool = False) -> bool:
        """Whether the directory has this very wheel; hashes a new or changed file, any file with reread."""
        path = self.directory / wheel.file
        try:
            status = path.stat()
        except FileNotFoundError:
            self.known.pop(wheel.file, None)
            return False
        seen = self.known.get(wheel.file)
        if reread or seen is None or seen[:2] != [status.st_size, status.st_mtime_ns]:
            seen = [status.st_size, status.st_mtime_ns, sha256_of(path)]
            self.known[wheel.file] = seen
        return seen[2] == wheel.sha256


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step; an equal file is not touched."""
    if path.is_file() and path.read_text() == text:
        return
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)


def choose_torch(wanted: str, current: str | None, architecture: str) -> tuple[str, str]:
    """The build of torch and the reason, in words. A build that the directory already has is kept."""
    if wanted != "auto":
        return wanted, "asked for"
    if current in (CPU, CUDA):
        return current, "as in this directory before"
    if architecture not in ARCHITECTURES[CPU]:
        return CUDA, f"there is no CPU build for {architecture}"
    if has_cpu_torch(load_table().torch[CPU][0]):
        return CPU, "this machine's pip has the CPU build"
    return CUDA, "this machine's pip has no CPU build"


def batches(missing: list[tuple[Package, Wheel]]) -> Iterator[list[tuple[Package, Wheel]]]:
    """Group wheels for one pip run each: large ones alone, small ones together, in the given order."""
    group: list[tuple[Package, Wheel]] = []
    for item in missing:
        if group and (
            len(group) == BATCH_COUNT or sum(w.size for _, w in group) + item[1].size > BATCH_BYTES
        ):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def fill(house: Wheelhouse, table: Table, architecture: str, *, reread: bool, say=print) -> int:
    """Bring the directory to what its releases need; returns how many wheels were fetched."""
    wanted: dict[str, tuple[Package, Wheel]] = {}
    for release in house.releases:
        for package in table.packages(release, house.torch or CPU):
            wheel = package.wheel_for(architecture)
            wanted[wheel.file] = (package, wheel)
    missing = [item for item in wanted.values() if not house.holds(item[1], reread=reread)]
    missing.sort(key=lambda item: item[1].size)
    build_wheel.build(house.directory)
    if missing:
        fetch(house, missing, len(wanted), say)
    for release in house.releases:
        text = render_lock(table, release, house.torch or CPU)
        write_atomically(house.directory / lock_name(release, CPU), text)
    house.save()
    return len(missing)


def fetch(house: Wheelhouse, missing: list[tuple[Package, Wheel]], wanted: int, say) -> None:
    """Download what is missing, group by group, telling how far it is."""
    total = sum(wheel.size for _, wheel in missing)
    say(f"{len(missing)} of {wanted} wheels are missing: {total / MB:.0f} MB to fetch into {house.directory}")
    free = shutil.disk_usage(house.directory).free
    if free < total + SPARE_BYTES:
        raise WheelhouseError(
            f"not enough free disk: {free / MB:.0f} MB, needed {(total + SPARE_BYTES) / MB:.0f} MB\n"
            f"next: free some space, or give another place with --directory"
        )
    done, number, started = 0, 0, time.monotonic()
    for group in batches(missing):
        number += len(group)
        say(f"[{number}/{len(missing)}] {done / MB:.0f} of {total / MB:.0f} MB  {names_of(group)}")
        with scratch(house.directory) as part:
            download(group, part, say)
            for _, wheel in group:
                take(house, part / wheel.file, wheel)
        house.save()
        done += sum(wheel.size for _, wheel in group)
    say(f"fetched {total / MB:.0f} MB in {time.monotonic() - started:.0f} s")


def names_of(group: list[tuple[Package, Wheel]]) -> str:
    """The packages of one group, shortened to fit a line."""
    names = [f"{package.name} {package.version}" for package, _ in group]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def take(house: Wheelhouse, path: Path, wheel: Wheel) -> None:
    """Check one downloaded wheel and move it into place."""
    if not path.is_file():
        raise WheelhouseError(f"pip did not leave {wheel.file}\nnext: python {HERE / 'make_lock.py'}")
    digest = sha256_of(path)
    if digest != wheel.sha256:
        raise WheelhouseError(f"{wheel.file} has sha256 {digest}, wheels.json says {wheel.sha256}")
    target = house.directory / wheel.file
    path.replace(target)
    status = target.stat()
    house.known[wheel.file] = [status.st_size, status.st_mtime_ns, digest]


@contextlib.contextmanager
def scratch(directory: Path) -> Iterator[Path]:
    """An empty place on the same file system, gone afterwards; sweeps what a killed run left.

    Always a new name: the pip of a killed run may still be writing into the old one.
    """
    for left in directory.glob(f"{PART}*"):
        shutil.rmtree(left, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=PART, dir=directory))
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextlib.contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Hold the directory's lock; a second run waits for the first."""
    with (directory / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Fill a wheelhouse for SGLang on the CPU.")
    parser.add_argument("--directory", type=Path, default=DEFAULT_DIRECTORY)
    parser.add_argument(
        "--release", action="append", help=f"SGLang release, may be repeated (default {DEFAULT_RELEASE})"
    )
    parser.add_argument("--torch", choices=("auto", CPU, CUDA), default="auto", help="build of torch")
    parser.add_argument("--verify", action="store_true", help="hash every file again")
    parser.add_argument("--architecture", default=platform.machine(), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    for release in options.release or []:
        if not re.fullmatch(r"\d+\.\d+\.\d+", release):
            parser.error(f"not a release: {release}")
    return options


def main(argv: list[str] | None = None) -> int:
    """Command line; 0 when the directory is complete."""
    options = arguments(argv)
    directory = options.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    with only_one(directory):
        house = Wheelhouse.load(directory)
        before = house.torch
        try:
            house.torch, why = choose_torch(options.torch, before, options.architecture)
            table = load_table()
            kept = {release for release in house.releases if release in table.releases}
            house.releases = sorted(kept | set(options.release or [DEFAULT_RELEASE]))
            if house.torch != before:
                print(f"torch: the {house.torch.upper()} build ({why})", flush=True)
            fetched = fill(house, table, options.architecture, reread=options.verify, say=tell)
            fetched += download_lock(TOOLS_LOCK, directory)
        except (WheelhouseError, PipFailedError, LookupError) as failure:
            print(f"wheelhouse: {failure}", file=sys.stderr)
            return 1
    news = f"{fetched} wheels fetched" if fetched else "nothing to fetch"
    tell(f"wheelhouse complete: SGLang {', '.join(house.releases)}, torch {house.torch}, {news}: {directory}")
    return 0


def tell(line: str) -> None:
    """Print at once, also into a pipe."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
