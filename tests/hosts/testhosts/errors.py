"""The one error of the tool: what failed, the evidence, and the next command."""

from __future__ import annotations

from collections.abc import Sequence

PREFIX = "hosts"


class HostsError(Exception):
    """A failure that a person can act on. ``evidence`` is one line an item; ``next`` is what to type or change."""

    def __init__(self, what: str, *, evidence: Sequence[str] = (), next: str) -> None:
        super().__init__(what)
        self.what = what
        self.evidence = list(evidence)
        self.next = next

    def message(self) -> str:
        lines = [f"{PREFIX}: {self.what}"]
        lines += [f"  {line}" for line in self.evidence]
        lines.append(f"Next: {self.next}")
        return "\n".join(lines)


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived. Not an ``Exception``, so that no handler for failures swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number
