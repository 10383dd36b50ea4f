"""A tree made equal to pristine plus a list of patches: apply, revert and change are one thing.

Everything is read, composed and compiled before the first byte is written; :func:`apply` with ``check`` ends there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import AerieError, ErrorKind
from ..release import wheel_record
from .compose import APPLIED, NOT_APPLICABLE, REMOVED, compose
from .entry import PROBE, Entry, probe_texts
from .pristine import Pristine, unified
from .replace import Change, replace_all
from .store import FileRecord, Manifest, PatchStore, applied_entries, sha256
from .unified import FileDiff, parse_diff

BAD_TARGET = ErrorKind(
    "bad-patch-target",
    "A file that a source patch is for cannot be replaced: it is a link or no plain file, or its directory is missing.",
)

_TAGS = {NOT_APPLICABLE: "--"}


@dataclass
class TreeResult:
    """What a tree is (or, with check, would be). ``files``: ``{path, before, after, changed, patches}`` each.

    ``tree`` is ``pristine``, ``pristine + fixes: a``, or ``debug: b, c; fixes: a``. ``entries``: what is applied.
    """

    release: str
    proof: str
    tree: str
    changed: bool
    files: list[dict[str, Any]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    entries: list[dict[str, str]] = field(default_factory=list)
    diff: str = ""

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass
class _File:
    path: str
    current: bytes | None
    pristine: bytes | None
    wanted: bytes | None
    states: dict[str, str]


def apply(
    site: Path,
    release: str,
    entries: Sequence[Entry],
    *,
    check: bool = False,
    guard: Callable[[], None] = lambda: None,
    durable: bool = True,
    diff: bool = False,
) -> TreeResult:
    """Make the tree equal to pristine plus the entries, in their order.

    guard: called once it is known that a file has to change, before the first write (``patch_site.check_unused``); a
    tree that is built aside needs none. durable: every file is synced before it counts. diff: also say what changes in
    each file, as a unified diff. Raises what guard does, the errors of ``patch_anchor``, ``patch_compose``,
    ``patch_unified``, ``patch_pristine``, ``patch_replace``, and bad-patch-target.
    """
    with _locked(site, write=not check):
        return _apply(
            PatchStore(site, durable=durable), release, entries, check=check, guard=guard, diff=diff
        )


def _apply(
    store: PatchStore,
    release: str,
    entries: Sequence[Entry],
    *,
    check: bool,
    guard: Callable[[], None],
    diff: bool,
) -> TreeResult:
    texts = probe_texts(entries)
    plan = _Plan(store.root.parent, release, entries, store)
    files = plan.files(texts)
    changes = [plan.change(one) for one in files if one.current != one.wanted]
    if changes:
        guard()
    manifest = plan.manifest(files, texts)
    left = store.journal is not None or (not manifest.files and store.root.is_dir())
    stale = left or manifest.as_dict() != store.manifest.as_dict()
    if not check and (changes or stale):
        _write(store, changes, manifest)
    return TreeResult(
        release=release,
        proof=plan.pristine.proof,
        tree=tree_line(manifest.entries),
        changed=bool(changes),
        files=[_report(one) for one in [*files, *plan.untouched()]],
        messages=_messages([*files, *plan.untouched()], release),
        entries=manifest.entries,
        diff=_diff(files) if diff else "",
    )


def _write(store: PatchStore, changes: Sequence[Change], manifest: Manifest) -> None:
    """Replace the files, and first remove what a killed run left beside those that it did not get to."""
    site = store.root.parent
    for path in store.journal.files if store.journal else ():
        target = site / path
        target.with_name(f".{target.name}.aerie-new").unlink(missing_ok=True)
    replace_all(store, changes, manifest)


class _Plan:
    """The entries sorted by file, and each file's pristine and wanted bytes."""

    def __init__(self, site: Path, release: str, entries: Sequence[Entry], store: PatchStore) -> None:
        self.site, self.release, self.entries, self.store = site, release, entries, store
        self.diffs: dict[str, dict[str, FileDiff]] = {}
        self.wanted: dict[str, list[Entry]] = {}
        self.other: dict[str, list[Entry]] = {}
        for entry in entries:
            parsed = parse_diff(entry.name, entry.diff) if entry.diff else []
            group = self.wanted if entry.for_release(release) else self.other
            for diff in parsed:
                self.diffs.setdefault(diff.path, {})[entry.name] = diff
                group.setdefault(diff.path, []).append(entry)
            if not parsed:
                group.setdefault(entry.file, []).append(entry)
        probes = [path for entry in entries for path in entry.probes]
        self.paths = list(dict.fromkeys([*self.wanted, *probes, *sorted(store.paths())]))
        self.pristine = Pristine(site, store, self.paths)

    def files(self, texts: dict[str, str]) -> list[_File]:
        """Every file that is, was or shall be patched."""
        found = [self._composed(path, entries) for path, entries in self.wanted.items()]
        applied = {name for one in found for name, state in one.states.items() if state == APPLIED}
        probes = {path for entry in self.entries if entry.name in applied for path in entry.probes}
        for path in self.paths:
            if path not in self.wanted and (path in probes or path in self.store.paths()):
                current = self._read(path)
                pristine = self.pristine.of(path, current)
                wanted = texts[path].encode() if path in probes else pristine
                found.append(
                    _File(path, current, pristine, wanted, {PROBE: APPLIED} if path in probes else {})
                )
        for one in found:
            record = self.store.record(one.path)
            for name, state in (record.states if record else {}).items():
                if state == APPLIED and name not in one.states and name not in applied:
                    one.states[name] = REMOVED
        return found

    def _composed(self, path: str, entries: list[Entry]) -> _File:
        current = self._read(path)
        pristine = self.pristine.of(path, current)
        made = compose(path, pristine, entries, self.diffs.get(path, {}))
        return _File(path, current, pristine, made.data, dict(made.states))

    def _read(self, path: str) -> bytes | None:
        target = self.site / path
        if target.is_symlink() or (target.exists() and not target.is_file()):
            raise BAD_TARGET.error(
                f"{target} is a link or no plain file",
                evidence=[
                    f"it is {'a link to ' + str(target.readlink()) if target.is_symlink() else 'a directory'}"
                ],
                next="install sglang with plain files (uv: --link-mode=copy)",
            )
        if not target.parent.is_dir():
            return None
        return target.read_bytes() if target.exists() else None

    def change(self, one: _File) -> Change:
        target = self.site / one.path
        if not target.parent.is_dir():
            raise BAD_TARGET.error(
                f"there is no directory {target.parent}", next="correct the path in the entry or diff"
            )
        return Change(one.path, target, one.current, one.wanted, one.pristine, self._mtime_ns(one))

    def _mtime_ns(self, one: _File) -> int:
        """Of the pristine file: as it lies there, or as it was when it was first changed."""
        if one.current == one.pristine:
            return (self.site / one.path).stat().st_mtime_ns if one.current is not None else 0
        record = self.store.record(one.path)
        return record.mtime_ns if record else 0

    def manifest(self, files: Sequence[_File], texts: dict[str, str]) -> Manifest:
        """What is to be remembered: the files that are not pristine, and the entries that made them so."""
        records = {
            one.path: FileRecord(
                sha256(one.pristine),
                sha256(one.wanted),
                self.pristine.proof,
                self._mtime_ns(one),
                {name: state for name, state in one.states.items() if state != REMOVED},
            )
            for one in files
            if one.wanted != one.pristine
        }
        applied = {n for one in records.values() for n, state in one.states.items() if state == APPLIED}
        hashes = {entry.name: entry.sha256(texts) for entry in self.entries}
        return Manifest(
            self.release if records else "",
            applied_entries({entry.name: entry.set for entry in self.entries}, hashes, applied),
            records,
        )

    def untouched(self) -> list[_File]:
        """Entries for other releases, by file."""
        found = []
        for path, entries in self.other.items():
            states = {entry.name: NOT_APPLICABLE for entry in entries}
            found.append(_File(path, None, None, None, states))
        return found


def changed_by_others(site: Path) -> list[str]:
    """Files of the package that are neither as RECORD says nor as the manifest does; empty without a RECORD."""
    mine = PatchStore(site).manifest.files
    try:
        found = wheel_record.differences(site, "sglang")
    except AerieError:
        return []
    return [str(one) for one in found if one.path not in mine]


def tree_line(entries: Sequence[dict[str, str]]) -> str:
    """``pristine``, ``pristine + fixes: a``, or ``debug: b, c; fixes: a``."""
    groups: dict[str, list[str]] = {}
    for entry in entries:
        groups.setdefault(entry["set"], []).append(entry["name"])
    fixes = groups.pop("fixes", [])
    parts = [f"{group}: {', '.join(names)}" for group, names in sorted(groups.items())]
    if not parts:
        return f"pristine + fixes: {', '.join(fixes)}" if fixes else "pristine"
    return "; ".join([*parts, f"fixes: {', '.join(fixes)}"] if fixes else parts)


def _report(one: _File) -> dict[str, Any]:
    return {
        "path": one.path,
        "before": sha256(one.current),
        "after": sha256(one.wanted),
        "changed": one.current != one.wanted,
        "patches": one.states,
    }


def _messages(files: Sequence[_File], release: str) -> list[str]:
    """``[OK] deepseek_v2.py: aux_capture applied``, a line for each file and patch."""
    lines = []
    for one in files:
        for name, state in one.states.items():
            text = state.replace("_", " ") + (f" ({release})" if state == NOT_APPLICABLE else "")
            lines.append(f"[{_TAGS.get(state, 'OK')}] {Path(one.path).name}: {name} {text}")
    return lines


def _diff(files: Sequence[_File]) -> str:
    lines = [line for one in files for line in unified(one.path, one.current, one.wanted, "now", "wanted")]
    return "".join(f"{line}\n" for line in lines)


@contextmanager
def _locked(site: Path, *, write: bool) -> Iterator[None]:
    """One run at a time on a tree; the lock is the directory's own, so no file is left."""
    handle = os.open(site, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if write else fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)
