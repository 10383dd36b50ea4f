"""Render the Python expression of a message as the texts that it can become.

``f"journalctl -u {unit.name}" if down else "ss -ltnp"`` gives ``journalctl -u {unit.name}`` and ``ss -ltnp``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

UNKNOWN = "…"
# A text is followed through this many names and functions at most.
DEPTH = 6
# More texts than this from one expression help nobody.
MOST = 16

Choose = Callable[[str, int], int]


def renderings(expression: ast.expr, tree: ast.Module) -> list[str]:
    """All texts that the expression can become, without repeats.

    Conditions are tried both ways, the same condition the same way throughout one text. Names are followed to what
    is assigned to them in the same function or at the top of the file, also by a loop over a table there, and calls
    to the returns of the file's functions. What is not known before a run is shown as ``{name}``.
    """
    scope = _Scope(tree, expression)
    texts: list[str] = []
    pending: list[dict[str, int]] = [{}]
    while pending and len(texts) < MOST:
        choices = pending.pop(0)

        def choose(key: str, count: int, choices: dict[str, int] = choices) -> int:
            if key not in choices:
                pending.extend({**choices, key: other} for other in range(1, count))
                choices[key] = 0
            return choices[key]

        text = scope.text(expression, choose, 0)
        if text not in texts:
            texts.append(text)
    known = [text for text in texts if text not in ("", UNKNOWN)]
    return known or texts


@dataclass
class _Index:
    """The functions of a file: by name, and for each node the innermost one that holds it."""

    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    around: dict[ast.AST, ast.FunctionDef | None] = field(default_factory=dict)

    def fill(self, node: ast.AST, function: ast.FunctionDef | None) -> None:
        for child in ast.iter_child_nodes(node):
            self.around[child] = function
            if isinstance(child, ast.FunctionDef):
                self.functions[child.name] = child
            self.fill(child, child if isinstance(child, ast.FunctionDef) else function)


@cache
def _index(tree: ast.Module) -> _Index:
    index = _Index()
    index.fill(tree, None)
    return index


class _Scope:
    """Where names and functions of an expression are looked up."""

    def __init__(self, tree: ast.Module, expression: ast.expr) -> None:
        self.tree = tree
        self.function = _index(tree).around[expression]
        self.functions = _index(tree).functions

    def text(self, node: ast.expr, choose: Choose, depth: int) -> str:
        """One text of the expression; ``choose`` decides between alternatives."""
        if depth > DEPTH:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return "" if node.value is None else str(node.value)
        if isinstance(node, ast.JoinedStr):
            return "".join(self.text(part, choose, depth) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            return self._filled(node.value, choose, depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.text(node.left, choose, depth) + self.text(node.right, choose, depth)
        if isinstance(node, ast.IfExp):
            first = choose(ast.unparse(node.test), 2) == 0
            return self.text(node.body if first else node.orelse, choose, depth)
        if isinstance(node, ast.BoolOp):
            return self.text(node.values[choose(ast.unparse(node), len(node.values))], choose, depth)
        if isinstance(node, ast.Name):
            return self._named(node, choose, depth)
        if isinstance(node, ast.Call):
            return self._called(node, choose, depth)
        return UNKNOWN

    def _filled(self, node: ast.expr, choose: Choose, depth: int) -> str:
        """A value in an f-string: followed when it is made of texts, else shown by its name."""
        text = UNKNOWN
        if isinstance(node, ast.IfExp | ast.Constant | ast.JoinedStr | ast.Name):
            text = self.text(node, choose, depth + 1)
        return "{" + _label(node) + "}" if UNKNOWN in text else text

    def _named(self, node: ast.Name, choose: Choose, depth: int) -> str:
        for place in (self.function, self.tree):
            given = list(_assigned(place, node.id)) if place is not None else []
            if isinstance(place, ast.FunctionDef):
                given += _looped(place, self.tree, node.id)
            if given:
                which = choose(f"value of {node.id}", len(given)) if len(given) > 1 else 0
                return self.text(given[which], choose, depth + 1)
        return UNKNOWN

    def _called(self, node: ast.Call, choose: Choose, depth: int) -> str:
        called = self.functions.get(node.func.id) if isinstance(node.func, ast.Name) else None
        if called is None:
            return UNKNOWN
        returns = [one.value for one in ast.walk(called) if isinstance(one, ast.Return) and one.value]
        if not returns:
            return UNKNOWN
        inner = _Scope(self.tree, returns[0])
        which = choose(f"return of {called.name}", len(returns)) if len(returns) > 1 else 0
        return inner.text(returns[which], choose, depth + 1)


def _assigned(place: ast.FunctionDef | ast.Module, name: str) -> Iterator[ast.expr]:
    nodes = ast.walk(place) if isinstance(place, ast.FunctionDef) else iter(place.body)
    for node in nodes:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            yield value


def _looped(place: ast.FunctionDef, tree: ast.Module, name: str) -> Iterator[ast.expr]:
    """The cells of a table at the top of the file that ``for …, name in TABLE`` gives to the name."""
    for node in ast.walk(place):
        if not (
            isinstance(node, ast.For)
            and isinstance(node.target, ast.Tuple)
            and isinstance(node.iter, ast.Name)
        ):
            continue
        columns = [column.id if isinstance(column, ast.Name) else "" for column in node.target.elts]
        for table in _assigned(tree, node.iter.id) if name in columns else ():
            for row in table.elts if isinstance(table, ast.Tuple | ast.List) else ():
                if isinstance(row, ast.Tuple) and len(row.elts) == len(columns):
                    yield row.elts[columns.index(name)]


def _label(node: ast.expr) -> str:
    """What to call a value that only a run knows: its variable, attribute, key or function."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _label(node.value)
        return node.attr if owner in ("self", UNKNOWN) else f"{owner}.{node.attr}"
    if isinstance(node, ast.Subscript):
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            return node.slice.value
        return _label(node.value).lower()
    if isinstance(node, ast.Call):
        first = node.args[0] if node.args else None
        if isinstance(node.func, ast.Attribute):
            if node.func.attr == "get" and isinstance(first, ast.Constant):
                return str(first.value)
            return (
                _label(first) if node.func.attr == "join" and first is not None else _label(node.func.value)
            )
        return _label(first) if first is not None else UNKNOWN
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return f"{_label(node.left)} + {_label(node.right)}"
    if isinstance(node, ast.BoolOp):
        return _label(node.values[0])
    if isinstance(node, ast.Constant):
        return str(node.value)
    return UNKNOWN
