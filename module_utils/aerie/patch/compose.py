"""One file: its pristine bytes and the entries that are for it make the wanted bytes. Pure."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import AerieError, ErrorKind
from .anchor import ANCHOR_NOT_FOUND, ANCHOR_UNUSABLE, ParsedFile
from .entry import Entry
from .text import Edit
from .unified import FileDiff, apply_diff

NOT_COMPILABLE = ErrorKind(
    "patch-does-not-compile",
    "A file would not compile after its patches, or does not before; nothing was changed.",
)

APPLIED = "applied"
ALREADY_UPSTREAM = "already_upstream"
NOT_APPLICABLE = "not_applicable"
REMOVED = "removed"


@dataclass(frozen=True)
class Composed:
    """The wanted bytes and, by entry, ``applied`` or ``already_upstream``."""

    data: bytes | None
    states: Mapping[str, str]


def compose(
    path: str, pristine: bytes | None, entries: Sequence[Entry], diffs: Mapping[str, FileDiff]
) -> Composed:
    """Apply the entries of one file, in order: diffs first (they name lines of the release), then anchors.

    diffs: of the entries that are diffs, by name. All anchors are looked for in the same text, so no entry sees what
    another inserts. Raises the errors of ``patch_anchor`` and ``patch_unified``, and patch-does-not-compile.
    """
    states: dict[str, str] = {}
    data = pristine
    for entry in (one for one in entries if one.name in diffs):
        changed = apply_diff(entry.name, diffs[entry.name], data)
        states[entry.name] = ALREADY_UPSTREAM if changed is None else APPLIED
        data = data if changed is None else changed
    anchored = [one for one in entries if one.name not in diffs]
    if anchored:
        if data is None:
            raise ANCHOR_NOT_FOUND.error(
                f"patch {anchored[0].name}: there is no {path}",
                next=f"narrow the entry's releases ({anchored[0].releases or 'all'}) or correct its file",
            )
        data = _insert(path, data, anchored, states)
    if data != pristine and data is not None:
        check_compiles(path, data, [name for name, state in states.items() if state == APPLIED])
    return Composed(data, {entry.name: states[entry.name] for entry in entries})


def _insert(path: str, data: bytes, entries: Sequence[Entry], states: dict[str, str]) -> bytes:
    try:
        parsed = ParsedFile(path, data)
    except (SyntaxError, ValueError) as error:
        raise _broken(path, error, [one.name for one in entries], "cannot be read as Python") from None
    edits = []
    for order, entry in enumerate(entries):
        edit = parsed.edit(entry, order)
        states[entry.name] = ALREADY_UPSTREAM if edit is None else APPLIED
        if edit is not None:
            edits.append(edit)
    _check_overlap(path, edits)
    try:
        return parsed.source.edited(edits)
    except UnicodeEncodeError as error:
        raise _broken(path, error, [edit.name for edit in edits], "cannot hold the inserted text") from None


def _check_overlap(path: str, edits: Sequence[Edit]) -> None:
    for one in edits:
        for other in edits:
            inside = one.start < other.start < one.end or (
                one.start == other.start and other.start < other.end
            )
            if one is not other and one.end > one.start and inside:
                raise ANCHOR_UNUSABLE.error(
                    f"patches {one.name} and {other.name} change the same lines of {path}",
                    evidence=[f"lines {one.start + 1} to {one.end}"],
                    next="leave one of them out, or correct its anchor",
                )


def check_compiles(path: str, data: bytes, names: Sequence[str]) -> None:
    """Raise patch-does-not-compile unless the bytes are a Python module."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(data, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise _broken(path, error, names, "would not compile") from None


def _broken(path: str, error: Exception, names: Sequence[str], what: str) -> AerieError:
    line = f"line {error.lineno}: {(error.text or '').rstrip()}" if isinstance(error, SyntaxError) else ""
    return NOT_COMPILABLE.error(
        f"{path} {what}: {getattr(error, 'msg', error)}",
        evidence=[one for one in (line, f"patches: {', '.join(names)}") if one],
        next="correct the code of these patches, or look at the file with python3 -m py_compile",
    )
