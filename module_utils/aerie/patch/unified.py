"""Plain unified diffs, as ``diff -u`` and ``git diff`` write them: all hunks or nothing, no fuzz, no leftovers.

A hunk must fit exactly: at the line that it names, or at the one other place of the file that has its lines.
Newlines are the file's own, so a diff with ``\\n`` fits a file with ``\\r\\n``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..errors import AerieError, ErrorKind
from .entry import check_path
from .text import SourceText

BAD_DIFF = ErrorKind(
    "bad-unified-diff", "A patch's diff is no unified diff, or does what Aerie does not take over."
)
HUNK_FAILED = ErrorKind(
    "hunk-does-not-fit",
    "A hunk of a unified diff does not fit the file exactly; nothing of the diff was applied.",
)

_NO_NEWLINE = "\\ No newline at end of file"
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_REFUSED = (
    "rename from",
    "rename to",
    "copy from",
    "GIT binary patch",
    "Binary files",
    "deleted file mode",
    "old mode",
)


@dataclass
class Hunk:
    """``old`` and ``new``: lines without newline. ``start``: line (from 0) of ``old`` in the file.

    ``open_ends``: the sides, ``old`` and ``new``, whose last line is the file's and has no newline.
    """

    start: int
    head: str
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    open_ends: set[str] = field(default_factory=set)


@dataclass
class FileDiff:
    """The hunks for one file, a path relative to site-packages; ``creates``: the file must not be there."""

    path: str
    creates: bool
    hunks: list[Hunk] = field(default_factory=list)


def parse_diff(name: str, text: str) -> list[FileDiff]:
    """Read a diff. Whatever stands before ``sglang/`` in a path is left out. Raises bad-unified-diff."""
    files: list[FileDiff] = []
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith(_REFUSED):
            raise _bad(
                name,
                f"line {at + 1}: {line[:80]}",
                "renames, deletions, modes and binary files are not taken",
            )
        if line.startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ "):
            files.append(_file(name, line, lines[at + 1], at))
            at += 2
        elif line.startswith("@@"):
            if not files:
                raise _bad(name, f"line {at + 1}: a hunk before any --- and +++ lines", "")
            at = _read_hunk(name, lines, at, files[-1])
        else:
            at += 1
    if not files or any(not one.hunks for one in files):
        raise _bad(name, "no hunks" if files else "no --- and +++ lines", "")
    if len({one.path for one in files}) != len(files):
        raise _bad(name, "a file is in it twice", "")
    return files


def _bad(name: str, what: str, why: str) -> AerieError:
    return BAD_DIFF.error(
        f"patch {name}: {what}",
        evidence=[why] if why else [],
        next="make it again with `diff -u` or `git diff`, with paths that contain sglang/",
    )


def _file(name: str, old: str, new: str, at: int) -> FileDiff:
    before, after = (line[4:].split("\t")[0].strip() for line in (old, new))
    if after == "/dev/null":
        raise _bad(name, f"line {at + 1}: removes {before}", "files are not removed")
    _, found, rest = f"/{after}".partition("/sglang/")
    path = f"sglang/{rest}" if found else after
    wrong = check_path(path)
    if wrong:
        raise _bad(name, f"line {at + 2}: {wrong[0]}", "")
    return FileDiff(path, before == "/dev/null")


def _read_hunk(name: str, lines: list[str], at: int, file: FileDiff) -> int:
    """Read the hunk that begins at a line; returns the line after it."""
    match = _HUNK.match(lines[at])
    if match is None:
        raise _bad(name, f"line {at + 1}: {lines[at][:60]} is no hunk's head", "")
    old_left, new_left = int(match[2] or 1), int(match[4] or 1)
    # A hunk without old lines names the line after which it goes
    hunk = Hunk(int(match[1]) - (1 if old_left else 0), f"{file.path} {match[0]}")
    at += 1
    last = ""
    while old_left > 0 or new_left > 0 or lines[at : at + 1] == [_NO_NEWLINE]:
        line = lines[at] if at < len(lines) else None
        kind, body = (line[:1], line[1:].removesuffix("\r")) if line else (" " if line == "" else "", "")
        if kind not in (" ", "-", "+", "\\"):
            raise _bad(name, f"{hunk.head}: ends at line {at + 1}, sooner than its head says", "")
        if kind in (" ", "-"):
            hunk.old.append(body)
            old_left -= 1
        if kind in (" ", "+"):
            hunk.new.append(body)
            new_left -= 1
        if kind == "\\":
            hunk.open_ends |= {"-": {"old"}, "+": {"new"}}.get(last, {"old", "new"})
        last = kind
        at += 1
    if old_left or new_left:
        raise _bad(name, f"{hunk.head}: has more lines than its head says", "")
    file.hunks.append(hunk)
    return at


def apply_diff(name: str, diff: FileDiff, data: bytes | None) -> bytes | None:
    """The file after all hunks; None when the file has all of it already. Raises hunk-does-not-fit."""
    if diff.creates:
        fresh = "\n".join(diff.hunks[0].new) + "\n"
        if data is not None and data.decode("utf-8", "replace") == fresh:
            return None
        if data is not None:
            raise _does_not_fit(name, diff.hunks[0], "the file is there already", [])
        return fresh.encode()
    if data is None:
        raise _does_not_fit(name, diff.hunks[0], "the file is not there", [])
    source = SourceText(data)
    there = all(_place(hunk, "new", source) is not None for hunk in diff.hunks)
    if there and any(_place(hunk, "old", source) is None for hunk in diff.hunks):
        return None
    lines: list[str] = []
    done = 0
    ends = source.ends
    for hunk in diff.hunks:
        start = _place(hunk, "old", source)
        if start is None or start < done:
            raise _does_not_fit(name, hunk, "does not fit", source.plain)
        lines += source.lines[done:start]
        lines += _merged(hunk, source, start)
        done = start + len(hunk.old)
        if hunk.open_ends:
            ends = "new" not in hunk.open_ends
    return source.encoded(lines + source.lines[done:], ends=ends)


def _merged(hunk: Hunk, source: SourceText, start: int) -> list[str]:
    """The hunk's new lines; those that stay keep their own newline."""
    kept = source.lines[start : start + len(hunk.old)]
    known = {line.rstrip("\r\n"): line for line in kept if line.endswith(("\r", "\n"))}
    return [known.get(line, line + source.newline) for line in hunk.new]


def _place(hunk: Hunk, side: str, source: SourceText) -> int | None:
    """Where a side's lines are: at ``start``, or at the only other place. None: nowhere, or at several places."""
    wanted: list[str] = getattr(hunk, side)
    size, lines = len(wanted), source.plain

    def fits(at: int) -> bool:
        at_end = at + size == len(lines) and not source.ends
        return lines[at : at + size] == wanted and (side not in hunk.open_ends or at_end)

    if not size:
        return hunk.start if hunk.start <= len(lines) else None
    if fits(hunk.start):
        return hunk.start
    places = [at for at, line in enumerate(lines) if line == wanted[0] and fits(at)]
    return places[0] if len(places) == 1 else None


def _does_not_fit(name: str, hunk: Hunk, why: str, lines: list[str]) -> AerieError:
    near = [f"wants {line}" for line in hunk.old[:6]]
    near += [f"has   {line}" for line in lines[hunk.start : hunk.start + 6]]
    return HUNK_FAILED.error(
        f"patch {name}: {hunk.head}: {why}",
        evidence=near,
        next="make the diff again against this release, or narrow the entry's releases",
    )
