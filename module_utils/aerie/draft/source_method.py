"""Read what ``set_eagle3_layers_to_capture`` of an installed SGLang does, from its syntax tree alone.

The method is interpreted for given ids: a few statements (if, assignment, list comprehension, call) over plain
numbers and lists. Nothing of SGLang is imported or run, so no GPU and no torch are needed, and an unexpected
statement ends in :class:`CannotInterpret`, never in a guess.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

METHOD = "set_eagle3_layers_to_capture"
# Models that mark the layers themselves instead of keeping a list; a mark that was once set is never taken away.
FLAG = "_is_layer_to_capture"


class CannotInterpret(Exception):
    """The method holds something that this reader does not know."""


@dataclass(frozen=True)
class Opaque:
    """A value of which only its path is known, for example ``self.pp_group``."""

    path: str


@dataclass
class Effect:
    """What the method does: the loop indices that it sets, and through which attribute it passed them on.

    indices: None while nothing was set. flags: whether layers are marked (``_is_layer_to_capture``).
    delegated: attribute of ``self`` whose method of the same name was called with ``passed``.
    """

    indices: list[int] | None = None
    flags: bool = False
    delegated: str = ""
    passed: list[int] | None = None


class _Return(Exception):
    pass


@dataclass
class _Interpreter:
    layers: int
    names: dict[str, Any] = field(default_factory=dict)
    effect: Effect = field(default_factory=Effect)

    def run(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.If):
            self.run(node.body if self.truth(self.value(node.test)) else node.orelse)
        elif isinstance(node, ast.Assign):
            self.assign(node.targets, self.value(node.value))
        elif isinstance(node, ast.Expr):
            self.value(node.value)
        elif isinstance(node, ast.Return):
            raise _Return
        elif isinstance(node, ast.For):
            # Only loops that mark layers occur; what is marked is the list that was assigned before.
            if FLAG not in ast.unparse(node):
                raise CannotInterpret(f"line {node.lineno}: a loop that marks no layers")
            self.effect.flags = True
        elif isinstance(node, ast.Raise):
            raise CannotInterpret(f"line {node.lineno}: raises for these ids")
        elif not isinstance(node, ast.Pass):
            raise CannotInterpret(f"line {node.lineno}: {type(node).__name__}")

    def assign(self, targets: Sequence[ast.expr], value: Any) -> None:
        for target in targets:
            if isinstance(target, ast.Name):
                self.names[target.id] = value
            elif isinstance(target, ast.Attribute):
                if target.attr == "layers_to_capture":
                    self.effect.indices = _numbers(value)
            else:
                raise CannotInterpret(f"line {target.lineno}: assignment to {ast.unparse(target)}")

    @staticmethod
    def truth(value: Any) -> bool:
        if isinstance(value, Opaque):
            # One process of a pipeline: the last rank is the one that captures.
            if value.path.endswith("is_last_rank"):
                return True
            raise CannotInterpret(f"depends on {value.path}")
        return bool(value)

    def value(self, node: ast.expr) -> Any:
        reader = _READERS.get(type(node))
        if reader is None:
            raise CannotInterpret(f"line {node.lineno}: {type(node).__name__}")
        return reader(self, node)

    def call(self, node: ast.Call) -> Any:
        function = node.func
        if isinstance(function, ast.Name):
            return self.call_builtin(function.id, node)
        if isinstance(function, ast.Attribute) and function.attr == METHOD:
            owner = self.value(function.value)
            if not isinstance(owner, Opaque) or len(node.args) != 1:
                raise CannotInterpret(f"line {node.lineno}: {ast.unparse(node)}")
            self.effect.delegated = owner.path.removeprefix("self.")
            given = self.value(node.args[0])
            self.effect.passed = None if given is None else _numbers(given)
            return None
        return Opaque(ast.unparse(node))

    def call_builtin(self, name: str, node: ast.Call) -> Any:
        if name == "hasattr":
            return True
        arguments = [self.value(argument) for argument in node.args]
        if name == "len" and isinstance(arguments[0], Opaque):
            return self.layers if arguments[0].path.endswith("layers") else arguments[0]
        known: dict[str, Callable[..., Any]] = {
            "len": len,
            "list": list,
            "max": max,
            "min": min,
            "sorted": sorted,
        }
        if name in known and not any(isinstance(argument, Opaque) for argument in arguments):
            return known[name](*arguments)
        return Opaque(ast.unparse(node))


def _numbers(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
        raise CannotInterpret(f"layers are not a list of numbers: {value}")
    return list(value)


def _attribute(self: _Interpreter, node: ast.Attribute) -> Any:
    return self.layers if node.attr == "num_hidden_layers" else Opaque(ast.unparse(node))


def _comparison(self: _Interpreter, node: ast.Compare) -> Any:
    if len(node.ops) != 1:
        raise CannotInterpret(f"line {node.lineno}: chained comparison")
    left, right, operator = self.value(node.left), self.value(node.comparators[0]), node.ops[0]
    if isinstance(operator, ast.Is):
        return left is right
    if isinstance(operator, ast.IsNot):
        return left is not right
    compare = _COMPARISONS.get(type(operator))
    if compare is None or isinstance(left, Opaque) or isinstance(right, Opaque):
        raise CannotInterpret(f"line {node.lineno}: {ast.unparse(node)}")
    return compare(left, right)


def _bool(self: _Interpreter, node: ast.BoolOp) -> bool:
    wanted = isinstance(node.op, ast.Or)
    for part in node.values:
        if self.truth(self.value(part)) == wanted:
            return wanted
    return not wanted


def _unary(self: _Interpreter, node: ast.UnaryOp) -> Any:
    value = self.value(node.operand)
    if isinstance(node.op, ast.Not):
        return not self.truth(value)
    if isinstance(node.op, ast.USub) and isinstance(value, int):
        return -value
    raise CannotInterpret(f"line {node.lineno}: {ast.unparse(node)}")


def _arithmetic(self: _Interpreter, node: ast.BinOp) -> Any:
    operate = _OPERATORS.get(type(node.op))
    left, right = self.value(node.left), self.value(node.right)
    if operate is None or isinstance(left, Opaque) or isinstance(right, Opaque):
        raise CannotInterpret(f"line {node.lineno}: {ast.unparse(node)}")
    return operate(left, right)


def _comprehension(self: _Interpreter, node: ast.ListComp) -> list[Any]:
    loop = node.generators[0]
    if len(node.generators) != 1 or loop.ifs or not isinstance(loop.target, ast.Name):
        raise CannotInterpret(f"line {node.lineno}: {ast.unparse(node)}")
    result = []
    for item in _numbers(self.value(loop.iter)):
        self.names[loop.target.id] = item
        result.append(self.value(node.elt))
    return result


def _subscript(self: _Interpreter, node: ast.Subscript) -> Any:
    owner, index = self.value(node.value), self.value(node.slice)
    if isinstance(owner, Opaque) or not isinstance(index, int):
        return Opaque(ast.unparse(node))
    return owner[index]


_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mult: lambda a, b: a * b,
}
_READERS: dict[type, Callable[[_Interpreter, Any], Any]] = {
    ast.Constant: lambda self, node: node.value,
    ast.Name: lambda self, node: self.names.get(node.id, Opaque(node.id)),
    ast.List: lambda self, node: [self.value(item) for item in node.elts],
    ast.Attribute: _attribute,
    ast.Compare: _comparison,
    ast.BoolOp: _bool,
    ast.UnaryOp: _unary,
    ast.BinOp: _arithmetic,
    ast.ListComp: _comprehension,
    ast.Subscript: _subscript,
    ast.Call: _Interpreter.call,
}


def interpret(function: ast.FunctionDef, ids: Sequence[int] | None, layers: int) -> Effect:
    """What ``function`` does for ``ids`` (None: called without ids) on a target of ``layers`` layers.

    Raises CannotInterpret; also when the method takes no ids and some are given (0.4.4.post2 to 0.4.8.post1).
    """
    parameters = [argument.arg for argument in function.args.args[1:]]
    if not parameters and ids is not None:
        raise CannotInterpret("takes no ids")
    interpreter = _Interpreter(layers)
    if parameters:
        interpreter.names[parameters[0]] = None if ids is None else list(ids)
    try:
        interpreter.run(function.body)
    except _Return:
        pass
    except (IndexError, ValueError, TypeError) as error:
        raise CannotInterpret(str(error)) from error
    return interpreter.effect
