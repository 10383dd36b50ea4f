"""What Aerie remembers beside a patched tree: ``<site-packages>/.aerie-patches/``, there only while a patch is.

``manifest.json`` says of each changed file what it was and what it became (sha256); ``pristine/<sha256>`` holds the
bytes that it was, so going back needs no network; ``bytecode/`` the byte-code that belonged to them; ``journal.json``
is there from before the first file of a change is replaced until after the last, and says the same of that change.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ..files import read_json, write_json

DIRECTORY = ".aerie-patches"
VERSION = 1


def sha256(data: bytes | None) -> str:
    """Hex sha256; empty for a file that is not there."""
    return "" if data is None else hashlib.sha256(data).hexdigest()


@dataclass
class FileRecord:
    """One changed file. ``before``/``after``: sha256, empty for not there. ``mtime_ns``: of the pristine file."""

    before: str
    after: str
    proof: str
    mtime_ns: int = 0
    states: dict[str, str] = field(default_factory=dict)


@dataclass
class Manifest:
    """``entries``: what was applied, as ``{name, set, sha256}``; ``files``: by path relative to site-packages."""

    release: str = ""
    entries: list[dict[str, str]] = field(default_factory=list)
    files: dict[str, FileRecord] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Manifest | None:
        """None when there is no manifest or it cannot be read."""
        given = read_json(path)
        if not isinstance(given, dict) or given.get("version") != VERSION:
            return None
        files = {name: FileRecord(**one) for name, one in given["files"].items()}
        return cls(given["release"], given["entries"], files)

    def as_dict(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}


class PatchStore:
    """The private directory of one tree. Without ``durable`` nothing is synced: for a tree that is built aside."""

    def __init__(self, site: Path, *, durable: bool = True) -> None:
        self.root = site / DIRECTORY
        self.durable = durable
        self.manifest = Manifest.read(self.root / "manifest.json") or Manifest()
        self.journal = Manifest.read(self.root / "journal.json")

    def record(self, path: str) -> FileRecord | None:
        """What is known of a file: of the finished change, or else of the one under way."""
        known = self.manifest.files.get(path)
        return known or (self.journal.files.get(path) if self.journal else None)

    def ours(self, path: str) -> set[str]:
        """Hashes of contents that Aerie itself gave a file; the empty one when it removed it."""
        records = [one.files[path] for one in (self.manifest, self.journal) if one and path in one.files]
        return {one.after for one in records}

    def known_before(self, path: str) -> set[str]:
        """Hashes of what a file was before Aerie changed it."""
        records = [one.files[path] for one in (self.manifest, self.journal) if one and path in one.files]
        return {one.before for one in records}

    def paths(self) -> set[str]:
        """Files that were changed, or may have been by a change under way."""
        return set(self.manifest.files) | (set(self.journal.files) if self.journal else set())

    def kept(self, digest: str) -> bytes | None:
        """The bytes with this sha256, None when they are not kept or are not what they were."""
        try:
            data = (self.root / "pristine" / digest).read_bytes() if digest else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        return data if sha256(data) == digest else None

    def create(self) -> None:
        """Make the directory: root's own, and git ignores it in a source checkout."""
        for name in ("pristine", "bytecode"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o755)
        (self.root / ".gitignore").write_bytes(b"*\n")

    def keep(self, source: Path, data: bytes) -> None:
        """Keep a pristine file's bytes: the file itself by another name where that can be, else a copy.

        It is about to be replaced, not written to, so the second name goes on holding what it was.
        """
        path = self.root / "pristine" / sha256(data)
        if self.kept(path.name) is not None:
            return
        path.unlink(missing_ok=True)
        if source.read_bytes() == data:
            with contextlib.suppress(OSError):
                os.link(source, path)
                return
        self.write_file(path, data)

    def write_file(self, path: Path, data: bytes) -> None:
        """Write a new file beside ``path`` and rename it into place."""
        fresh = path.with_name(f".{path.name}.new")
        with fresh.open("wb") as stream:
            stream.write(data)
            self.sync(stream)
        fresh.replace(path)

    def sync(self, stream: BinaryIO) -> None:
        """Make a file's bytes last through a power cut."""
        stream.flush()
        if self.durable:
            os.fsync(stream.fileno())

    def sync_directory(self, path: Path) -> None:
        """The same for renames and removals in a directory."""
        if not self.durable:
            return
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def write(self, name: str, manifest: Manifest) -> None:
        write_json(self.root / f"{name}.json", manifest.as_dict())
        self.sync_directory(self.root)

    def drop_journal(self) -> None:
        (self.root / "journal.json").unlink(missing_ok=True)
        self.journal = None

    def tidy(self, manifest: Manifest) -> None:
        """Remove what the manifest does not need any more; all of it when no file is changed."""
        if not manifest.files:
            shutil.rmtree(self.root, ignore_errors=True)
            return
        needed = {one.before for one in manifest.files.values()}
        for path in (self.root / "pristine").iterdir():
            if path.name not in needed:
                path.unlink()
        names = {name.replace("/", "%") for name in manifest.files}
        for path in (self.root / "bytecode").iterdir():
            if path.name not in names:
                shutil.rmtree(path)


def applied_entries(
    names: Mapping[str, str], hashes: Mapping[str, str], applied: Iterable[str]
) -> list[dict[str, str]]:
    """``[{name, set, sha256}]`` of the entries that changed a file, in catalogue order. names: ``{name: set}``."""
    there = set(applied)
    return [
        {"name": name, "set": group, "sha256": hashes[name]} for name, group in names.items() if name in there
    ]
