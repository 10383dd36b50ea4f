"""Compare installed files with the RECORD that their wheel brought: what was edited, removed or added.

Every wheel carries ``RECORD``: one line a file with its path (relative to site-packages), ``sha256=`` in
URL-safe base64 without padding, and its size in bytes (PyPA "Recording installed projects"). pip keeps it up
to date for the files that it writes itself. Byte-code is not compared: Python checks it against its source by
itself.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import ErrorKind
from .lockfile import normalised

RECORD_MISSING = ErrorKind(
    "record-missing",
    "An installed distribution has no RECORD, so its files cannot be compared with what its wheel contained. "
    "Usually it was not installed from a wheel (a source checkout), or its dist-info was removed.",
)

MISMATCH = "changed"
MISSING = "missing"
EXTRA = "extra"


@dataclass(frozen=True)
class RecordedFile:
    """One line of RECORD. ``sha256`` is as recorded, in base64; None where the line has none (RECORD itself)."""

    path: str
    sha256: str | None
    size: int | None


@dataclass(frozen=True)
class Difference:
    """A file that is not as recorded: kind is changed, missing or extra; path is relative to site-packages."""

    kind: str
    path: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.path}"


def find_dist_info(site_packages: Path, distribution: str) -> Path | None:
    """The ``*.dist-info`` directory of a distribution in a site-packages directory, or None."""
    wanted = normalised(distribution)
    for path in sorted(site_packages.glob("*.dist-info")):
        if normalised(path.name.removesuffix(".dist-info").rsplit("-", 1)[0]) == wanted:
            return path
    return None


def parse_record(text: str) -> list[RecordedFile]:
    """Read the text of a RECORD file. Lines without a sha256 keep ``sha256=None``."""
    files = []
    for row in csv.reader(text.splitlines()):
        if not row or not row[0]:
            continue
        recorded, size = [*row[1:], "", ""][:2]
        algorithm, _, value = recorded.partition("=")
        sha256 = value if algorithm == "sha256" and value else None
        files.append(RecordedFile(row[0], sha256, int(size) if size.isdigit() else None))
    return files


def read_record(site_packages: Path, distribution: str) -> list[RecordedFile]:
    """RECORD of an installed distribution. Raises RECORD_MISSING when there is none."""
    dist_info = find_dist_info(site_packages, distribution)
    record = dist_info / "RECORD" if dist_info else None
    if record is None or not record.is_file():
        raise RECORD_MISSING.error(
            f"{distribution} has no RECORD in {site_packages}",
            evidence=[f"dist-info: {dist_info or 'none'}"],
            next="install it again from a wheel",
        )
    return parse_record(record.read_text(encoding="utf-8"))


def differences(
    site_packages: Path, distribution: str, *, unchanged_since_ns: int | None = None
) -> list[Difference]:
    """Every file of ``distribution`` under ``site_packages`` that is not as its RECORD says, sorted by path.

    unchanged_since_ns: skip the hash of files whose size is right and whose content and inode were last
    touched at or before this time (nanoseconds since 1970): the quick check of a tree known to be good at
    that time. A file that was touched later is hashed, so the answer is about content, never about times.
    Extra files are looked for in the directories that RECORD names, without byte-code.
    """
    found = iter_differences(site_packages, read_record(site_packages, distribution), unchanged_since_ns)
    return sorted(found, key=lambda difference: difference.path)


def iter_differences(
    site_packages: Path, recorded: Iterable[RecordedFile], unchanged_since_ns: int | None = None
) -> Iterator[Difference]:
    """The same over lines of RECORD already read; yields in the order found."""
    known = list(recorded)
    for file in known:
        if _is_bytecode(file.path) or file.sha256 is None:
            continue
        kind = _compare(f"{site_packages}/{file.path}", file, unchanged_since_ns)
        if kind:
            yield Difference(kind, file.path)
    yield from _extra(site_packages, known)


def _compare(path: str, file: RecordedFile, unchanged_since_ns: int | None) -> str | None:
    try:
        status = os.stat(path)  # noqa: PTH116  thousands of files a check: Path objects double the time
    except (FileNotFoundError, NotADirectoryError):
        return MISSING
    if file.size is not None and status.st_size != file.size:
        return MISMATCH
    touched_ns = max(status.st_mtime_ns, status.st_ctime_ns)
    if unchanged_since_ns is not None and touched_ns <= unchanged_since_ns:
        return None
    return None if file.sha256 is not None and _sha256(path) == file.sha256.rstrip("=") else MISMATCH


def _extra(site_packages: Path, known: list[RecordedFile]) -> Iterator[Difference]:
    """Files that RECORD does not name, in the directories of site-packages that it does name."""
    names = {file.path for file in known}
    tops = {path.split("/", 1)[0] for path in names if "/" in path and not path.startswith(("../", "/"))}
    for top in sorted(tops):
        for directory, subdirectories, files in os.walk(site_packages / top):
            subdirectories[:] = [name for name in subdirectories if name != "__pycache__"]
            inside = os.path.relpath(directory, site_packages)
            for name in files:
                path = f"{inside}/{name}"
                if path not in names and not _is_bytecode(path):
                    yield Difference(EXTRA, path)


def _is_bytecode(path: str) -> bool:
    return path.endswith((".pyc", ".pyo"))


def _sha256(path: str) -> str:
    """A file's sha256 as RECORD writes it."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
