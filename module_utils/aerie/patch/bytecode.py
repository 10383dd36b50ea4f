"""Byte-code of changed files: what was compiled from other text must never run.

Python trusts a ``.pyc`` whose header names the source's size and modification time in whole seconds. A change of equal
size in the same second would go unseen, and a ``.pyc`` that is not checked at all (PEP 552) would always run. So the
byte-code of a changed file is taken away, and its new time differs by a second from any that a ``.pyc`` names. What
belonged to the pristine file is kept and comes back with it.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from .store import PatchStore

_HEADER = struct.Struct("<4sIII")  # magic, flags, time, size


def compiled(source: Path) -> Iterator[Path]:
    """Every byte-code file of a source file, of any Python and optimisation."""
    cache = source.parent / "__pycache__"
    try:
        names = sorted(entry.name for entry in os.scandir(cache))
    except (FileNotFoundError, NotADirectoryError):
        return
    start = f"{source.stem}."
    yield from (cache / name for name in names if name.startswith(start) and name.endswith(".pyc"))


def named_time(path: Path) -> int | None:
    """The source's modification time in seconds that a ``.pyc`` names; None when it goes by hash or is none."""
    try:
        with path.open("rb") as stream:
            header = stream.read(_HEADER.size)
    except FileNotFoundError:
        return None
    if len(header) < _HEADER.size:
        return None
    _, flags, time, _ = _HEADER.unpack(header)
    return int(time) if flags == 0 else None


def safe_time_ns(source: Path, wanted_ns: int) -> int:
    """``wanted_ns`` or a little later: in whole seconds neither the source's present time nor any byte-code's."""
    taken = {time for time in (named_time(path) for path in compiled(source)) if time is not None}
    with contextlib.suppress(FileNotFoundError):
        taken.add(int(source.stat().st_mtime) & 0xFFFFFFFF)
    while (wanted_ns // 10**9) & 0xFFFFFFFF in taken:
        wanted_ns += 10**9
    return wanted_ns


def discard(source: Path) -> None:
    """Remove all byte-code of a source file."""
    for path in compiled(source):
        path.unlink(missing_ok=True)


def keep(store: PatchStore, name: str, source: Path) -> None:
    """Keep the byte-code that is valid for the pristine source as it lies there. name: its path in the tree."""
    try:
        status = source.stat()
    except FileNotFoundError:
        return
    for path in compiled(source):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        if len(data) < _HEADER.size:
            continue
        _, flags, time, size = _HEADER.unpack(data[: _HEADER.size])
        fresh = (time, size) == (int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
        if flags or fresh:
            store.write_file(_kept(store, name, path.name), data)


def restore(store: PatchStore, name: str, source: Path) -> None:
    """Put the pristine file's byte-code back, after the file itself."""
    kept = store.root / "bytecode" / name.replace("/", "%")
    if not kept.is_dir():
        return
    cache = source.parent / "__pycache__"
    if cache.is_dir():
        status = cache.stat()
        for path in kept.iterdir():
            if path.name.endswith(".pyc"):
                store.write_file(cache / path.name, path.read_bytes())
                if os.geteuid() == 0:
                    os.chown(cache / path.name, status.st_uid, status.st_gid)


def _kept(store: PatchStore, name: str, file: str) -> Path:
    directory = store.root / "bytecode" / name.replace("/", "%")
    directory.mkdir(parents=True, exist_ok=True)
    return directory / file
