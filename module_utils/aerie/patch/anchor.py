"""Find a patch's place in the syntax tree of a file: exactly one, or an error that shows what is there instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import AerieError, ErrorKind
from .entry import Entry, parse_statement
from .text import Edit, SourceText

ANCHOR_NOT_FOUND = ErrorKind(
    "patch-anchor-not-found",
    "The place that a source patch names is not in the file exactly once: this release of SGLang is written otherwise "
    "than the patch expects. Nothing was changed.",
)
ANCHOR_UNUSABLE = ErrorKind(
    "patch-anchor-unusable",
    "The place that a source patch names is there, but lines cannot be inserted at it: another statement shares the "
    "line, or two patches change the same lines.",
)

_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
# What tells a compound statement by its head; bodies are left out.
_HEADS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.If: ("test",),
    ast.While: ("test",),
    ast.For: ("target", "iter"),
    ast.AsyncFor: ("target", "iter"),
    ast.With: ("items",),
    ast.AsyncWith: ("items",),
    ast.Match: ("subject",),
    ast.FunctionDef: ("name", "args", "returns"),
    ast.AsyncFunctionDef: ("name", "args", "returns"),
    ast.ClassDef: ("name", "bases", "keywords"),
}
SHOWN = 12


@dataclass(frozen=True)
class Scope:
    """Where to look: ``label`` as a person writes it, the class if there is one, and the node whose body it is."""

    label: str
    owner: ast.ClassDef | None
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class ParsedFile:
    """A file with its syntax tree. Raises SyntaxError, ValueError (NUL), UnicodeDecodeError."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self.source = SourceText(data)
        self.tree = ast.parse(data, path)

    def edit(self, entry: Entry, order: int) -> Edit | None:
        """The edit of an entry, None when its ``unless`` says that the release has it already."""
        scopes = self._scopes(entry)
        if self._is_there(entry, scopes):
            return None
        lines = entry.code.strip("\n").splitlines()
        if entry.where == "add_method":
            return self._add_method(entry, self._one_scope(entry, scopes), lines, order)
        if entry.where == "first":
            return self._first(entry, self._one_scope(entry, scopes), lines, order)
        node = self._statement(entry, scopes)
        if entry.where == "first_in_body":
            return self._before(entry, self._body(entry, node)[0], lines, order)
        if entry.where == "before":
            return self._before(entry, node, lines, order)
        if entry.where == "replace":
            start = self._start(entry, node)
            indent = self._indent(entry, node)
            self._check_end(entry, node)
            return Edit(start, _end(node), _indented(lines, indent), 1, len(indent), order, entry.name)
        return self._after(entry, node, lines, order)

    # -- where to look -------------------------------------------------------------------------------------------

    def _scopes(self, entry: Entry) -> list[Scope]:
        """Every class or function that the anchor's names fit; the module when it names none."""
        owners: list[ast.ClassDef | None] = [None]
        if entry.classes:
            classes = [node for node in _defined(self.tree) if isinstance(node, ast.ClassDef)]
            owners = [node for node in classes if node.name in entry.classes]
            if not owners:
                known = [f"line {node.lineno}: class {node.name}" for node in classes]
                raise self._not_found(entry, f"no class {' or '.join(entry.classes)}", known)
        if not entry.functions:
            return [Scope(owner.name if owner else "module", owner, owner or self.tree) for owner in owners]
        found, known = [], []
        for owner in owners:
            prefix = f"{owner.name}." if owner else ""
            for node in _defined(owner or self.tree):
                if isinstance(node, _FUNCTION):
                    known.append(f"line {node.lineno}: {prefix}{node.name}")
                    if node.name in entry.functions or entry.functions == ("*",):
                        found.append(Scope(f"{prefix}{node.name}", owner, node))
        if not found:
            place = f" in class {' or '.join(entry.classes)}" if entry.classes else ""
            raise self._not_found(entry, f"no function {' or '.join(entry.functions)}{place}", known)
        return found

    def _one_scope(self, entry: Entry, scopes: list[Scope]) -> Scope:
        if len(scopes) != 1:
            lines = [f"line {getattr(scope.node, 'lineno', 1)}: {scope.label}" for scope in scopes]
            raise self._not_found(entry, f"{len(scopes)} places fit", lines)
        return scopes[0]

    def _is_there(self, entry: Entry, scopes: list[Scope]) -> bool:
        method, text, statement = (entry.unless.get(name) for name in ("method", "text", "statement"))
        owners = [scope.owner for scope in scopes if scope.owner]
        if method and any(getattr(node, "name", "") == method for one in owners for node in _defined(one)):
            return True
        if text and text in self.source.text:
            return True
        return bool(statement and any(self._hits(statement, scope) for scope in scopes))

    def _hits(self, statement: str, scope: Scope) -> list[ast.stmt]:
        wanted, head = parse_statement(statement)
        fields = _HEADS[type(wanted)] if head else ()
        shape = _shape(wanted, fields)
        same = (node for node in _statements(scope) if type(node) is type(wanted))
        return [node for node in same if _shape(node, fields) == shape]

    def _statement(self, entry: Entry, scopes: list[Scope]) -> ast.stmt:
        hits = [(scope, node) for scope in scopes for node in self._hits(entry.statement, scope)]
        if len(hits) == 1:
            return hits[0][1]
        first = entry.statement.strip().splitlines()[0]
        where = ", ".join(scope.label for scope in scopes[:3]) + (", …" if len(scopes) > 3 else "")
        if hits:
            lines = [f"line {node.lineno}: {scope.label}: {self._shown(node)}" for scope, node in hits]
            raise self._not_found(entry, f"`{first}` is {len(hits)} times in {where}", lines)
        raise self._not_found(entry, f"`{first}` is not in {where}", self._near(entry, scopes))

    def _near(self, entry: Entry, scopes: list[Scope]) -> list[str]:
        """Statements of the same kind, those with most words in common first."""
        wanted, _ = parse_statement(entry.statement)
        words = set(re.findall(r"\w+", entry.statement))
        rated = []
        for scope in scopes:
            for node in _statements(scope):
                if type(node) is type(wanted):
                    text = self._shown(node)
                    common = len(words & set(re.findall(r"\w+", text)))
                    if common:
                        rated.append((-common, node.lineno, f"line {node.lineno}: {scope.label}: {text}"))
        return [line for _, _, line in sorted(rated)]

    def _shown(self, node: ast.stmt) -> str:
        return self.source.lines[node.lineno - 1].strip()[:120]

    def _not_found(self, entry: Entry, what: str, candidates: Sequence[str]) -> AerieError:
        more = [f"… and {len(candidates) - SHOWN} more"] if len(candidates) > SHOWN else []
        return ANCHOR_NOT_FOUND.error(
            f"patch {entry.name}: {self.path}: {what}",
            evidence=[*candidates[:SHOWN], *more] or ["nothing like it is there"],
            next=f"narrow the entry's releases ({entry.releases or 'all'}) or correct its anchor",
        )

    # -- how to insert there -------------------------------------------------------------------------------------

    def _before(self, entry: Entry, node: ast.stmt, lines: list[str], order: int) -> Edit:
        start, indent = self._start(entry, node), self._indent(entry, node)
        return Edit(start, start, _indented(lines, indent), 1, len(indent), order, entry.name)

    def _after(self, entry: Entry, node: ast.stmt, lines: list[str], order: int) -> Edit:
        indent = self._indent(entry, node)
        self._check_end(entry, node)
        return Edit(_end(node), _end(node), _indented(lines, indent), 0, len(indent), order, entry.name)

    def _first(self, entry: Entry, scope: Scope, lines: list[str], order: int) -> Edit:
        body = scope.node.body
        if ast.get_docstring(scope.node, clean=False) is None:
            return self._before(entry, body[0], lines, order)
        return self._after(entry, body[0], lines, order)

    def _add_method(self, entry: Entry, scope: Scope, lines: list[str], order: int) -> Edit:
        body = scope.node.body
        indent = self._indent(entry, body[0])
        self._check_end(entry, body[-1])
        text = ("", *_indented(lines, indent))
        return Edit(_end(body[-1]), _end(body[-1]), text, 0, len(indent), order, entry.name)

    def _body(self, entry: Entry, node: ast.stmt) -> list[ast.stmt]:
        body: list[ast.stmt] | None = getattr(node, "body", None)
        if not body:
            raise self._unusable(entry, node.lineno, "the statement has no body")
        return body

    def _start(self, entry: Entry, node: ast.stmt) -> int:
        decorators: list[ast.expr] = getattr(node, "decorator_list", [])
        self._indent(entry, node)
        return min([node.lineno, *(one.lineno for one in decorators)]) - 1

    def _indent(self, entry: Entry, node: ast.stmt) -> str:
        indent = self.source.indentation(node.lineno - 1, node.col_offset)
        if indent.strip(" \t\f"):
            raise self._unusable(entry, node.lineno, "another statement is on its line")
        if isinstance(node, ast.If) and self.source.rest(node.lineno - 1, node.col_offset).startswith("elif"):
            raise self._unusable(entry, node.lineno, "it is an elif")
        return indent

    def _check_end(self, entry: Entry, node: ast.stmt) -> None:
        rest = self.source.rest(_end(node) - 1, node.end_col_offset or 0).strip(" \t\f")
        if rest and not rest.startswith("#"):
            raise self._unusable(entry, _end(node), "something follows on its last line")

    def _unusable(self, entry: Entry, line: int, why: str) -> AerieError:
        return ANCHOR_UNUSABLE.error(
            f"patch {entry.name}: {self.path} line {line}: {why}",
            evidence=[self.source.lines[line - 1].rstrip("\r\n")[:160]],
            next="choose another statement for the entry's anchor",
        )


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _indented(lines: Sequence[str], indent: str) -> tuple[str, ...]:
    return tuple(f"{indent}{line}" if line.strip() else "" for line in lines)


def _shape(node: ast.AST, fields: tuple[str, ...]) -> str:
    """Structure without places; of a compound statement only the named fields."""
    if not fields:
        return ast.dump(node)
    parts = []
    for name in fields:
        value = getattr(node, name)
        parts += [ast.dump(one) if isinstance(one, ast.AST) else str(one) for one in _listed(value)]
    return "\n".join(parts)


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else [value]


def _defined(node: ast.Module | ast.ClassDef) -> Iterator[ast.stmt]:
    """Classes and functions defined at this level, also under if, try and with."""
    todo: list[ast.stmt] = list(node.body)
    while todo:
        one = todo.pop(0)
        if isinstance(one, (ast.ClassDef, *_FUNCTION)):
            yield one
        else:
            todo[:0] = list(_children(one))


def _statements(scope: Scope) -> Iterator[ast.stmt]:
    """Statements in source order: all that a function holds; of a class or module, those outside its functions."""
    inside = isinstance(scope.node, _FUNCTION)
    todo: list[ast.stmt] = list(scope.node.body)
    while todo:
        one = todo.pop(0)
        yield one
        if inside or not isinstance(one, (ast.ClassDef, *_FUNCTION)):
            todo[:0] = list(_children(one))


def _children(node: ast.stmt) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
            yield from child.body
