"""Which releases a patch is for: PEP 440 versions and specifiers, without the package ``packaging``.

Cores run under a host's bare python3, which may lack ``packaging``. Versions are those that SGLang publishes or builds:
``0.5.4``, ``0.5.4.post3``, ``0.5.5rc1``, ``0.5.5.dev12+g1a2b3c``. Pre-releases match like any other version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_INFINITY = float("inf")
_VERSION = re.compile(
    r"v?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>a|b|c|rc|alpha|beta|pre|preview)[-_.]?(?P<pre_n>\d*))?"
    r"(?:[-_.]?post[-_.]?(?P<post>\d*))?"
    r"(?:[-_.]?dev[-_.]?(?P<dev>\d*))?"
    r"(?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?\Z",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"\s*(==|!=|<=|>=|<|>)\s*([^\s,]+)\s*\Z")
_PRE = {"a": "a", "alpha": "a", "b": "b", "beta": "b", "c": "rc", "rc": "rc", "pre": "rc", "preview": "rc"}


@dataclass(frozen=True)
class Version:
    """A version; ``key`` orders it as PEP 440 says, without the local part (specifiers do not look at it)."""

    release: tuple[int, ...]
    pre: tuple[str, int] | None
    post: int | None
    dev: int | None

    @classmethod
    def parse(cls, text: str) -> Version:
        """Raises ValueError for text that is no version."""
        match = _VERSION.match(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is no version")
        numbers = [int(part) for part in match["release"].split(".")]
        while len(numbers) > 1 and numbers[-1] == 0:
            numbers.pop()
        pre = (_PRE[match["pre"].lower()], int(match["pre_n"] or 0)) if match["pre"] else None
        post = int(match["post"] or 0) if match["post"] is not None else None
        dev = int(match["dev"] or 0) if match["dev"] is not None else None
        return cls(tuple(numbers), pre, post, dev)

    @property
    def key(self) -> tuple[object, ...]:
        pre: tuple[object, ...] = self.pre or ("z",)
        if self.pre is None and self.post is None and self.dev is not None:
            pre = ("",)  # 1.0.dev1 comes before 1.0a1
        post = -1 if self.post is None else self.post
        return (self.release, pre, post, _INFINITY if self.dev is None else self.dev)


def check_range(specifier: str) -> None:
    """Raise ValueError unless the text is a comma-separated list of ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=``."""
    contains(specifier, "0")


def contains(specifier: str, release: str) -> bool:
    """Whether a release lies in a range like ``>=0.5.4.post3,<0.5.11``; an empty range holds every release."""
    version = Version.parse(release)
    clauses = [clause for clause in specifier.split(",") if clause.strip()]
    results = [_holds(clause, version) for clause in clauses]  # all of them: a bad one is an error
    return all(results)


def _holds(clause: str, version: Version) -> bool:
    match = _CLAUSE.match(clause)
    if match is None:
        raise ValueError(f"{clause.strip()!r} is no version specifier")
    operator, text = match.groups()
    if text.endswith(".*"):
        if operator not in ("==", "!="):
            raise ValueError(f"{clause.strip()!r}: a version with .* goes with == and != only")
        prefix = tuple(int(part) for part in text[:-2].split("."))
        padded = version.release + (0,) * (len(prefix) - len(version.release))
        return (padded[: len(prefix)] == prefix) == (operator == "==")
    wanted = Version.parse(text)
    mine, theirs = version.key, wanted.key
    if operator == "<":
        # PEP 440: <V holds no pre-release of V, unless V is one itself
        early = wanted.pre is not None or wanted.dev is not None
        return mine < (theirs if early else replace(wanted, dev=0).key)
    if operator == ">":
        # PEP 440: >V holds no post-release of V; of a post- or development release there is none
        family = (version.release, version.pre) == (wanted.release, wanted.pre)
        return mine > theirs and not (family and wanted.post is None and wanted.dev is None)
    results = {"==": mine == theirs, "!=": mine != theirs, "<=": mine <= theirs, ">=": mine >= theirs}
    return results[operator]
