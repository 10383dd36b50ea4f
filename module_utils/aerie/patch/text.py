"""A Python file as lines that survive: every byte that is not inserted stays what it was.

Lines are those of Python's tokenizer (``\\n``, ``\\r\\n``, ``\\r``), in the file's own encoding (PEP 263), a byte-order
mark kept aside. Inserted lines take the file's newline.
"""

from __future__ import annotations

import codecs
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


@dataclass(frozen=True)
class Edit:
    """Lines ``start`` to ``end`` (from 0, end exclusive; equal: pure insertion) become ``lines`` (without newlines).

    Edits at one place are ordered by ``rank`` (what follows a statement comes before what precedes the next), then
    deeper indentation first where ``rank`` is 0, then ``order``.
    """

    start: int
    end: int
    lines: tuple[str, ...]
    rank: int
    depth: int
    order: int
    name: str

    @property
    def key(self) -> tuple[int, int, int, int]:
        return (self.start, self.rank, -self.depth if self.rank == 0 else 0, self.order)


class SourceText:
    """The text of a file. Raises UnicodeDecodeError, SyntaxError (bad cookie) for bytes that are no Python text."""

    def __init__(self, data: bytes) -> None:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        self.bom = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
        self.encoding = "utf-8" if encoding == "utf-8-sig" else encoding
        self.text = data[len(self.bom) :].decode(self.encoding)
        self.lines: list[str] = _LINE.findall(self.text)
        self.newline = _newline(self.lines)
        self.plain = [line.rstrip("\r\n") for line in self.lines]
        # Whether the last line has a newline; an empty file wants one in its first
        self.ends = not self.lines or self.lines[-1].endswith(("\n", "\r"))

    def indentation(self, number: int, column: int) -> str:
        """The text before a node at ``column`` (UTF-8 bytes, as ast counts) of line ``number`` (from 0)."""
        return self.lines[number].encode("utf-8")[:column].decode("utf-8")

    def rest(self, number: int, column: int) -> str:
        """The text after that place, without the newline."""
        return self.lines[number].encode("utf-8")[column:].decode("utf-8").rstrip("\r\n")

    def edited(self, edits: Iterable[Edit]) -> bytes:
        """The bytes after the edits, which must not overlap. Raises UnicodeEncodeError."""
        lines: list[str] = []
        at = 0
        for edit in sorted(edits, key=lambda one: one.key):
            lines += self.lines[at : edit.start]
            lines += [line + self.newline for line in edit.lines]
            at = edit.end
        lines += self.lines[at:]
        return self.encoded(lines, ends=self.ends)

    def encoded(self, lines: list[str], *, ends: bool) -> bytes:
        """Lines as bytes, each with a newline but the last, which has one where ``ends`` says so."""
        whole = [line if line.endswith(("\n", "\r")) else line + self.newline for line in lines]
        if whole and not ends:
            whole[-1] = whole[-1].rstrip("\r\n")
        return self.bom + "".join(whole).encode(self.encoding)


def _newline(lines: list[str]) -> str:
    """The newline that most lines end in; ``\\n`` for a file without one."""
    ends = Counter(line[len(line.rstrip("\r\n")) :] for line in lines)
    del ends[""]
    return ends.most_common(1)[0][0] if ends else "\n"
