"""Replace all files of a change or none, each in one step, so that a kill leaves each file wholly old or wholly new.

Order: pristine bytes are kept, the journal is written, every new file is written and synced beside its place, then each
is renamed into place, then the manifest is written and the journal removed. A run that finds a journal knows
every content that the killed one may have left, plans from the pristine bytes and goes through the same steps.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ErrorKind
from . import bytecode
from .store import FileRecord, Manifest, PatchStore, sha256

NOT_WRITTEN = ErrorKind(
    "patch-not-written",
    "Files of the sglang tree could not be replaced; those that were are as they were before.",
)


@dataclass(frozen=True)
class Change:
    """One file: ``old`` becomes ``new`` (None: not there). ``pristine``: what it is without any patch."""

    path: str
    target: Path
    old: bytes | None
    new: bytes | None
    pristine: bytes | None
    mtime_ns: int  # of the pristine file; it comes back with its bytes

    @property
    def staged(self) -> Path:
        """Where the new bytes wait. The name ends in no suffix that Python imports."""
        return self.target.with_name(f".{self.target.name}.aerie-new")


def replace_all(store: PatchStore, changes: Sequence[Change], manifest: Manifest) -> None:
    """Make every change and write the manifest that says so. Raises patch-not-written."""
    writes = [one for one in changes if one.new is not None]
    # A file that calls a new one comes after it, and goes before it
    ordered = sorted(changes, key=lambda one: (one.old is not None) + (one.new is None))
    done: list[Change] = []
    try:
        store.create()
        for change in changes:
            _keep(store, change)
        store.write("journal", _journal(manifest, changes))
        for change in writes:
            _stage(store, change, change.new)
        for change in ordered:
            done.append(change)
            _swap(change, change.new)
        for directory in {change.target.parent for change in changes}:
            store.sync_directory(directory)
        for change in changes:
            if change.new is not None and change.new == change.pristine:
                bytecode.restore(store, change.path, change.target)
        store.write("manifest", manifest)
        store.drop_journal()
        store.tidy(manifest)
    except OSError as error:
        _undo(store, writes, done)
        raise NOT_WRITTEN.error(
            f"{len(changes)} files of {store.root.parent} were to be replaced: {error.strerror or error}",
            evidence=[f"failed at: {error.filename or store.root}"],
            next=f"see whether it is writable and has room: df -h {store.root.parent}; then run again",
        ) from error


def _keep(store: PatchStore, change: Change) -> None:
    """Keep what the file is without patches, the first time that it changes."""
    if change.pristine is None or change.new == change.pristine:
        return
    store.keep(change.target, change.pristine)
    if change.old == change.pristine:
        bytecode.keep(store, change.path, change.target)


def _journal(manifest: Manifest, changes: Sequence[Change]) -> Manifest:
    """The manifest to be, and the files that it does not hold since they will be pristine."""
    files = dict(manifest.files)
    for one in changes:
        files.setdefault(one.path, FileRecord(sha256(one.pristine), sha256(one.new), "", one.mtime_ns))
    return Manifest(manifest.release, manifest.entries, files)


def _stage(store: PatchStore, change: Change, data: bytes | None) -> None:
    """Write bytes beside the file, with its owner, mode and extended attributes, and a time that is safe."""
    staged = change.staged
    staged.unlink(missing_ok=True)
    if data == change.pristine and _is_itself(store, change):
        os.link(store.root / "pristine" / sha256(data), staged)
        return
    handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(data or b"")
        stream.flush()
        _like(change, data, staged)
        store.sync(stream)


def _is_itself(store: PatchStore, change: Change) -> bool:
    """Whether the kept pristine file can come back as it is: owner, mode and time are what they have to be."""
    if change.pristine is None or not change.target.exists():
        return False
    try:
        kept, there = (store.root / "pristine" / sha256(change.pristine)).stat(), change.target.stat()
    except FileNotFoundError:
        return False
    same = (kept.st_uid, kept.st_gid, kept.st_mode) == (there.st_uid, there.st_gid, there.st_mode)
    names = sorted(os.listxattr(change.target))
    return same and kept.st_mtime_ns == change.mtime_ns and names == []


def _like(change: Change, data: bytes | None, staged: Path) -> None:
    place = change.target if change.target.exists() else change.target.parent
    like = place.stat()
    mode = stat.S_IMODE(like.st_mode) if place is change.target else like.st_mode & 0o666
    if os.geteuid() == 0 or (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(staged, like.st_uid, like.st_gid)
    if place is change.target:
        for name in os.listxattr(place):
            # SELinux's label comes with the directory; setting it needs a right that others do without
            if not name.startswith("security."):
                os.setxattr(staged, name, os.getxattr(place, name))
    staged.chmod(mode)
    now = time.time_ns()
    back = change.mtime_ns if data == change.pristine else 0
    wanted = back or bytecode.safe_time_ns(change.target, now)
    os.utime(staged, ns=(now, wanted))


def _swap(change: Change, data: bytes | None) -> None:
    """Before and after: a process that imports meanwhile may write byte-code of the old text once more."""
    bytecode.discard(change.target)
    if data is None:
        change.target.unlink(missing_ok=True)
        _drop_empty(change.target.parent / "__pycache__")
    else:
        change.staged.replace(change.target)
        change.staged.unlink(missing_ok=True)  # rename(2) does nothing between two names of one file
    bytecode.discard(change.target)


def _drop_empty(cache: Path) -> None:
    with contextlib.suppress(OSError):
        cache.rmdir()


def _undo(store: PatchStore, writes: Sequence[Change], done: Sequence[Change]) -> None:
    """After a failure: what was replaced becomes what it was. If that fails too, the journal stays for the next run."""
    try:
        for change in writes:
            change.staged.unlink(missing_ok=True)
        for change in done:
            if change.old is not None:
                _stage(store, change, change.old)
            _swap(change, change.old)
            if change.old is not None and change.old == change.pristine:
                bytecode.restore(store, change.path, change.target)
        store.drop_journal()
        store.tidy(store.manifest)
    except OSError:
        return
