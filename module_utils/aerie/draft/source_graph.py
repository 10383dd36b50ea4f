"""Confirm from the installed source whether CUDA graphs are captured with the draft's layer ids.

Two things are looked for under ``srt/model_executor``: a graph runner that sets the default layers again (the bug of
0.4.9 to 0.5.10.post1), and whether the ids are set before the model runner makes its graphs (the repair in 0.5.11).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from .source import mentions, parsed
from .source_method import METHOD

_SETS = (METHOD, "configure_aux_hidden_state_capture")
_GRAPHS = ("init_device_graphs", "init_cuda_graphs", "init_decode_cuda_graph")
_FIX = "keep_draft_layers"  # what the patch graph_capture_layers calls when the weights are loaded
_IDS = "eagle_aux_hidden_state_layer_ids"  # in the draft's config
_SET, _GRAPH = "set", "graph"


def graph_keeps_ids(package: Path) -> bool | None:
    """Whether graphs keep the ids, by the tree of ``package`` (``…/sglang``); None where the source does not tell."""
    executor = package / "srt" / "model_executor"
    runner_file = executor / "model_runner.py"
    if not runner_file.is_file():
        return None
    if mentions(runner_file, _FIX) and any(
        isinstance(node, ast.Attribute) and node.attr == _FIX for node in ast.walk(parsed(runner_file))
    ):
        return True
    runners = [file for file in sorted(executor.rglob("*graph_runner.py")) if mentions(file, METHOD)]
    again = [call for file in runners for call in _calls_of_method(parsed(file))]
    if again:
        return all(call.args or call.keywords for call in again)
    runner = _class(parsed(runner_file), "ModelRunner")
    if runner is None:
        return None
    methods = {part.name: part for part in runner.body if isinstance(part, ast.FunctionDef)}
    events = list(_events("initialize", methods, set()))
    if _SET in events:
        return _GRAPH not in events[: events.index(_SET)]
    # Newer runners leave both to their owner; the ids must then be set by a step that makes no graphs.
    for name in methods:
        steps = list(_events(name, methods, set()))
        if _SET in steps and name not in _GRAPHS:
            return _GRAPH not in steps[: steps.index(_SET)] and _GRAPH not in events
    return None


def reads_ids(package: Path) -> bool | None:
    """Whether the model runner reads layer ids from the draft's config at all."""
    executor = package / "srt" / "model_executor"
    if not executor.is_dir():
        return None
    return any(
        mentions(file, _IDS) and _IDS in ast.dump(parsed(file)) for file in sorted(executor.rglob("*.py"))
    )


def _calls_of_method(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == METHOD:
            yield node


def _class(tree: ast.Module, name: str) -> ast.ClassDef | None:
    return next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _events(name: str, methods: dict[str, ast.FunctionDef], seen: set[str]) -> Iterator[str]:
    """Settings of layers and makings of graphs in the order of the source, calls of own methods followed."""
    if name in seen or name not in methods:
        return
    seen.add(name)
    calls = [node for node in ast.walk(methods[name]) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        function = call.func
        called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if called in _SETS:
            # Without arguments it is the default again (a dummy run before the graphs, up to 0.5.10.post1).
            if call.args or call.keywords:
                yield _SET
        elif called in _GRAPHS:
            yield _GRAPH
        elif isinstance(function, ast.Attribute) and ast.unparse(function.value) == "self":
            yield from _events(called, methods, seen)
