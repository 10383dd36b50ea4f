"""Errors that a person can act on: what failed, the evidence, and the next command.

Each kind of error is declared once, as a module-level :class:`ErrorKind` next to the code that raises it. The
declaration carries the meaning that the documentation prints, so an undocumented error cannot be raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ErrorKind:
    """A kind of failure with a stable code.

    code: lower-case words joined by hyphens, unique in the project; people search for it.
    meaning: one or two sentences: what it means and what usually causes it.
    """

    declared: dict[str, ErrorKind] = {}

    def __init__(self, code: str, meaning: str) -> None:
        known: ErrorKind | None = ErrorKind.declared.get(code)
        if known is not None and known.meaning != meaning:
            raise ValueError(f"error code {code!r} is declared twice")
        self.code: str = code
        self.meaning: str = meaning
        ErrorKind.declared[code] = self

    def error(self, what: str, *, evidence: Sequence[str] = (), next: str) -> AerieError:
        """Make the error to raise. ``evidence`` is one line an item; ``next`` is what to type or change."""
        return AerieError(self, what, evidence, next)


class AerieError(Exception):
    """Raised by the cores; modules turn it into ``fail_json``."""

    def __init__(self, kind: ErrorKind, what: str, evidence: Sequence[str], next: str) -> None:
        super().__init__(what)
        self.kind = kind
        self.what = what
        self.evidence = list(evidence)
        self.next = next

    def message(self) -> str:
        """The text a person reads: what failed, the evidence line by line, the next command, the code."""
        lines = [f"{self.what} [{self.kind.code}]"]
        lines += [f"  {line}" for line in self.evidence]
        lines.append(f"Next: {self.next}")
        return "\n".join(lines)

    def as_result(self) -> dict[str, Any]:
        """Arguments for ``fail_json``."""
        return {
            "msg": self.message(),
            "error": {
                "code": self.kind.code,
                "what": self.what,
                "evidence": self.evidence,
                "next": self.next,
            },
        }
