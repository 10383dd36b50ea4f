"""A patch: one entry of the catalogue, checked field by field before anything is looked at.

An entry either names a place in a file's syntax tree and the code that goes there, or is a plain unified diff. Fields:

``name``      unique, ``[a-z0-9_]``
``set``       ``fixes``, ``debug``, ``profile`` or ``own``
``purpose``   one sentence; ``source`` (optional) says where the rule or the fix comes from
``releases``  PEP 440 range; empty for every release
``file``      relative to site-packages, ``sglang/….py``
``anchor``    ``class`` and ``function`` (a name or a list of alternatives; ``function: "*"`` is any method) and
              ``statement``: source text. A text that ends in ``:`` stands for a compound statement with that head.
``where``     ``before``, ``after`` or ``replace`` the statement, ``first_in_body`` of it, ``first`` in the function
              (after its docstring), ``add_method`` to the class (at its end)
``code``      the lines to insert, indented from column 0
``unless``    ``method``: one of that name is in the class, ``statement``: is in the function (or class, or module),
              ``text``: is in the file; any of them means that the release has it already
``probes``    ``{path relative to site-packages: text}`` of new files which the code needs; a text of null is
              with another entry of the same list
``diff``      in place of file, anchor, where and code
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from ..errors import AerieError, ErrorKind
from .release_range import check_range, contains

BAD_ENTRY = ErrorKind(
    "bad-patch-entry",
    "A source patch is not well formed: a field is missing, unknown, of another type, or does not fit the others.",
)

PROBE = "probe"  # stands for the entry where a file is a probe module
SETS = ("fixes", "debug", "profile", "own")
AT_STATEMENT = ("before", "after", "replace", "first_in_body")
WHERE = (*AT_STATEMENT, "first", "add_method")
_TEXT = ("name", "set", "purpose", "source", "releases", "file", "where", "code", "diff")
_FIELDS = {*_TEXT, "anchor", "unless", "probes"}
_NAME = re.compile(r"[a-z0-9][a-z0-9_]*\Z")


@dataclass(frozen=True)
class Entry:
    """A checked entry. ``classes`` and ``functions`` are alternatives; empty: not inside one."""

    name: str
    set: str
    purpose: str
    releases: str
    file: str = ""
    classes: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    statement: str = ""
    where: str = ""
    code: str = ""
    unless: Mapping[str, str] = field(default_factory=dict)
    probes: Mapping[str, str | None] = field(default_factory=dict)
    diff: str = ""
    source: str = ""

    def for_release(self, release: str) -> bool:
        """Whether the entry's range holds the release."""
        return contains(self.releases, release)

    def sha256(self, texts: Mapping[str, str]) -> str:
        """Names what the entry does. texts: of all probes (:func:`probe_texts`), since a null text is elsewhere."""
        content = {
            **{name: value for name, value in vars(self).items() if name not in ("purpose", "source")},
            "unless": dict(self.unless),
            "probes": {path: hashlib.sha256(texts[path].encode()).hexdigest() for path in self.probes},
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def parse_entries(given: Iterable[Mapping[str, Any]]) -> list[Entry]:
    """Check a list of entries; names must be unique. Raises bad-patch-entry."""
    entries = [parse_entry(one, number) for number, one in enumerate(given, 1)]
    seen: set[str] = set()
    for entry in entries:
        if entry.name in seen:
            raise _bad(entry.name, ["two entries have this name"])
        seen.add(entry.name)
    probe_texts(entries)
    return entries


def probe_texts(entries: Iterable[Entry]) -> dict[str, str]:
    """``{path: text}`` of every probe that the entries name. Raises bad-patch-entry: no text, or two."""
    known = list(entries)
    texts: dict[str, str] = {}
    for entry in known:
        for path, text in entry.probes.items():
            if text is not None and texts.setdefault(path, text) != text:
                raise _bad(entry.name, [f"probes: another entry gives {path} another text"])
    for entry in known:
        if entry.file in texts:
            raise _bad(entry.name, [f"file: {entry.file} is a probe of another entry"])
        for path in entry.probes:
            if path not in texts:
                raise _bad(entry.name, [f"probes: no entry gives the text of {path}"])
    return texts


def parse_entry(given: Any, number: int = 1) -> Entry:
    """Check one entry; ``number`` names one without a name. Raises bad-patch-entry with all that is wrong."""
    if not isinstance(given, Mapping):
        raise _bad(f"entry {number}", [f"it is {type(given).__name__}, a mapping is needed"])
    name = given.get("name")
    shown = name if isinstance(name, str) and name else f"entry {number}"
    wrong = _types(given)
    if wrong:
        raise _bad(shown, wrong)
    anchor = given.get("anchor") or {}
    entry = Entry(
        name=str(name or ""),
        set=str(given.get("set") or ""),
        purpose=str(given.get("purpose") or ""),
        source=str(given.get("source") or ""),
        releases=str(given.get("releases") or ""),
        file=str(given.get("file") or ""),
        classes=_names(anchor.get("class")),
        functions=_names(anchor.get("function")),
        statement=str(anchor.get("statement") or "").strip("\n"),
        where=str(given.get("where") or ""),
        code=str(given.get("code") or ""),
        unless=dict(given.get("unless") or {}),
        probes=dict(given.get("probes") or {}),
        diff=str(given.get("diff") or ""),
    )
    wrong = [*_common(entry), *(_diff_only(given) if entry.diff else _anchored(entry))]
    if wrong:
        raise _bad(shown, wrong)
    return entry


def _bad(name: str, wrong: list[str]) -> AerieError:
    return BAD_ENTRY.error(
        f"patch {name} is not well formed",
        evidence=wrong,
        next="correct the entry; the form is described in docs/patches.md",
    )


def _names(given: Any) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) and given else tuple(given or ())


def _types(given: Mapping[str, Any]) -> list[str]:
    """What is unknown or of another type."""
    wrong = [f"{name}: unknown field" for name in sorted(set(map(str, given)) - _FIELDS)]
    for name in _TEXT:
        if given.get(name) is not None and not isinstance(given[name], str):
            wrong.append(f"{name}: text is needed, not {type(given[name]).__name__} (quote it)")
    for name in ("anchor", "unless", "probes"):
        if given.get(name) is not None and not isinstance(given[name], Mapping):
            wrong.append(f"{name}: a mapping is needed, not {type(given[name]).__name__}")
    if wrong:
        return wrong
    anchor, unless = given.get("anchor") or {}, given.get("unless") or {}
    wrong += [f"anchor.{name}: unknown" for name in sorted(set(anchor) - {"class", "function", "statement"})]
    wrong += [f"unless.{name}: unknown" for name in sorted(set(unless) - {"method", "statement", "text"})]
    for name in ("class", "function"):
        value = anchor.get(name) or ""
        if not isinstance(value, str) and not (
            isinstance(value, list) and all(isinstance(one, str) for one in value)
        ):
            wrong.append(f"anchor.{name}: a name or a list of names is needed")
    texts = {"anchor.statement": anchor.get("statement"), **{f"unless.{k}": v for k, v in unless.items()}}
    wrong += [
        f"{name}: text is needed" for name, v in texts.items() if v is not None and not isinstance(v, str)
    ]
    for path, text in (given.get("probes") or {}).items():
        if text is not None and not isinstance(text, str):
            wrong.append(f"probes.{path}: the text of the file is needed")
    return wrong


def _common(entry: Entry) -> list[str]:
    wrong = []
    if not _NAME.match(entry.name) or entry.name == PROBE:
        wrong.append("name: lower-case letters, digits and _ are needed, and not probe alone")
    if entry.set not in SETS:
        wrong.append(f"set: {entry.set or 'nothing'} is none of {', '.join(SETS)}")
    if not entry.purpose:
        wrong.append("purpose: one sentence is needed")
    try:
        check_range(entry.releases)
    except ValueError as error:
        wrong.append(f"releases: {error}")
    for path, text in entry.probes.items():
        wrong += [f"probes: {one}" for one in check_path(path)]
        wrong += _compiles(text or "", f"probes.{path}")
    return wrong


def _diff_only(given: Mapping[str, Any]) -> list[str]:
    excess = [name for name in ("file", "anchor", "where", "code", "unless") if given.get(name)]
    return [f"{name}: does not go with diff, which says it itself" for name in excess]


def _anchored(entry: Entry) -> list[str]:
    wrong = [f"file: {one}" for one in check_path(entry.file)]
    if entry.where not in WHERE:
        return [*wrong, f"where: {entry.where or 'nothing'} is none of {', '.join(WHERE)}"]
    if not entry.code.strip():
        wrong.append("code: nothing to insert")
    if entry.where in AT_STATEMENT:
        wrong += ["anchor.statement: is needed"] if not entry.statement else _statement(entry.statement)
    elif entry.statement:
        wrong.append(f"anchor.statement: where {entry.where} takes none")
    if entry.where == "first" and not entry.functions:
        wrong.append("anchor.function: is needed for where first")
    if entry.where == "add_method" and (not entry.classes or entry.functions):
        wrong.append("anchor: where add_method takes a class and no function")
    if "*" in entry.functions and not entry.classes:
        wrong.append('anchor.function: "*" means any method, so anchor.class is needed')
    if entry.unless.get("method") and not entry.classes:
        wrong.append("unless.method: anchor.class is needed")
    if entry.unless.get("statement"):
        wrong += [f"unless: {one}" for one in _statement(entry.unless["statement"])]
    return [*wrong, *_code(entry)]


def _statement(text: str) -> list[str]:
    try:
        parse_statement(text)
    except ValueError as error:
        return [f"anchor.statement: {error}"]
    return []


def _code(entry: Entry) -> list[str]:
    """The code must parse; inside a function, where return and await are allowed, or as a class's body."""
    lines = "\n".join(f"    {line}" for line in entry.code.splitlines())
    return _compiles(
        f"async def _():\n{lines}\n" if entry.where != "add_method" else f"class _:\n{lines}\n", "code"
    )


def _compiles(text: str, what: str) -> list[str]:
    wrong = _syntax_error(text)
    return [f"{what}: {wrong}"] if wrong else []


@lru_cache(maxsize=256)
def _syntax_error(text: str) -> str:
    """Twenty entries name the same probe."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError) as error:
        return str(getattr(error, "msg", error)) or "cannot be parsed"
    return ""


def check_path(path: str) -> list[str]:
    """What is wrong with a path relative to site-packages."""
    pure = PurePosixPath(path)
    if not path.startswith("sglang/") or not path.endswith(".py"):
        return [f"{path or 'nothing'}: a path like sglang/srt/models/llama.py is needed"]
    if ".." in pure.parts or str(pure) != path or "\\" in path or "\0" in path:
        return [f"{path}: has to be plain, without .. and doubled slashes"]
    return []


def parse_statement(text: str) -> tuple[ast.stmt, bool]:
    """The statement of an anchor's text, and whether only its head counts. Raises ValueError.

    A text that ends in ``:`` is the head of a compound statement; any body goes with it.
    """
    source = textwrap.dedent(text).strip()
    head = source.endswith(":")
    try:
        body = ast.parse(f"{source}\n    pass" if head else source).body
    except (SyntaxError, ValueError):
        # return, await and yield parse anywhere, break and continue too; only a head such as `else:` is left
        raise ValueError(f"{source!r} is no statement") from None
    if len(body) != 1:
        raise ValueError(f"{len(body)} statements where one is needed")
    if head and isinstance(body[0], ast.Try):
        raise ValueError("try: has no head to tell it by; name a statement inside it")
    return body[0], head
