"""Hash-locked requirement lists: read, refused when they lock nothing, and named by one hash.

A list is pip's own format, as ``pip-compile --generate-hashes`` or ``uv pip compile --generate-hashes`` write
it: one ``name==version`` an entry, with at least one ``--hash=sha256:…`` each. Options that say where
packages come from (``--index-url`` and the like) are refused: a list says what, the inventory says from
where.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from ..errors import ErrorKind

LOCK_INVALID = ErrorKind(
    "lock-invalid",
    "A list of packages does not lock every package to one version and its sha256 hashes, so what it "
    "installs could change. Usually it was compiled without --generate-hashes, or edited by hand.",
)

_PIN = re.compile(
    r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<extras>\[[^\]]*\])?\s*==\s*(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)"
    r"\s*(?:;\s*(?P<marker>.+))?$"
)
_HASH = re.compile(r"--hash[= ](?P<algorithm>[a-z0-9]+):(?P<digest>[0-9a-fA-F]+)")
_SHA256_HEX = 64


@dataclass(frozen=True)
class Locked:
    """One entry. ``name`` is normalised (PEP 503); ``marker`` is empty when it applies everywhere."""

    name: str
    version: str
    sha256: tuple[str, ...]
    marker: str = ""


@dataclass(frozen=True)
class Lock:
    """A whole list, in the order of the file."""

    entries: tuple[Locked, ...]

    @property
    def sha256(self) -> str:
        """Names what the list installs: comments, order and line breaks do not count."""
        lines = sorted(
            f"{entry.name}=={entry.version};{entry.marker} {','.join(sorted(entry.sha256))}"
            for entry in self.entries
        )
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def version_of(self, name: str) -> str | None:
        """The version that the list locks for ``name``, or None."""
        wanted = normalised(name)
        return next((entry.version for entry in self.entries if entry.name == wanted), None)


def normalised(name: str) -> str:
    """A distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse(text: str, *, title: str = "the lock") -> Lock:
    """Read a list. Raises LOCK_INVALID naming every line that locks nothing; ``title`` is the list's name."""
    entries: list[Locked] = []
    bad: list[str] = []
    for number, line in _logical_lines(text):
        entry = _entry(line)
        if isinstance(entry, str):
            bad.append(f"line {number}: {entry}")
        else:
            entries.append(entry)
    if not bad and not entries:
        bad.append("it names no package")
    if bad:
        raise LOCK_INVALID.error(
            f"{title} does not lock what it installs",
            evidence=bad[:12] + ([f"… and {len(bad) - 12} more"] if len(bad) > 12 else []),
            next="compile it again: `pip-compile --generate-hashes` or `uv pip compile --generate-hashes`",
        )
    return Lock(tuple(entries))


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines with continuations joined and comments dropped, each with the number of its first line."""
    lines: list[tuple[int, str]] = []
    held = ""
    first = 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = re.sub(r"(^|\s)#.*$", "", raw).rstrip()
        first = first or number
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        whole = (held + line).strip()
        if whole:
            lines.append((first, whole))
        held, first = "", 0
    if held.strip():
        lines.append((first, held.strip()))
    return lines


def _entry(line: str) -> Locked | str:
    """The entry of one logical line, or what is wrong with it."""
    if line.startswith("-"):
        return f"an option, not a package: {line.split()[0]}"
    hashes = _HASH.findall(line)
    pin = _PIN.match(_HASH.sub("", line).strip())
    shown = line.split(" --hash")[0].strip()
    if pin is None:
        return f"not one version (name==version): {shown}"
    sha256 = tuple(digest.lower() for algorithm, digest in hashes if algorithm == "sha256")
    if not sha256 or any(len(digest) != _SHA256_HEX for digest in sha256):
        return f"no sha256 hash: {shown}"
    return Locked(normalised(pin["name"]), pin["version"], sha256, (pin["marker"] or "").strip())
