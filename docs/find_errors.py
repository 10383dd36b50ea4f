"""Find every error that Aerie can end with, by reading the source: nothing is imported and nothing is run.

An error is an ``ErrorKind`` declared at the top of a file in ``module_utils/aerie``. It is *raised* where somebody
calls ``KIND.error(what, next=…)``, or where an action plugin, which cannot import the cores, prints its code in
brackets.
Everything that cannot be followed is an error of its own here, so that the page cannot silently miss one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from render_text import renderings

CODE = re.compile(r"\[([a-z0-9]+(?:-[a-z0-9]+)+)\]")
CORES = "ansible.module_utils.aerie"


class DocumentError(Exception):
    """The source is written in a way that this reader cannot follow."""


@dataclass
class Site:
    """One place that raises an error. ``next``: what it tells people to type, {name} for what is filled in."""

    file: str
    function: str
    line: int
    next: list[str]


@dataclass
class Kind:
    """A declared kind of error and the places that raise it."""

    code: str
    meaning: str
    file: str
    line: int
    sites: list[Site] = field(default_factory=list)


@dataclass
class Found:
    """What :func:`find` returns. ``uncoded``: messages that people can meet and that have no code."""

    kinds: list[Kind]
    uncoded: list[tuple[Site, str]]


@dataclass
class Source:
    """A parsed file, with the function that each node stands in."""

    path: Path
    name: str  # relative to the root
    tree: ast.Module
    functions: dict[int, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, root: Path) -> Source:
        source = cls(path, str(path.relative_to(root)), ast.parse(path.read_text(encoding="utf-8")))
        source._note(source.tree, "")
        return source

    def _note(self, node: ast.AST, inside: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = inside
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{inside}.{child.name}".lstrip(".")
            self.functions[id(child)] = inside
            self._note(child, name)

    @property
    def module(self) -> str:
        """The core's dotted name below ``aerie``: ``errors``, ``draft.check``; of other files, their stem."""
        within = self.name.removeprefix("module_utils/aerie/")
        return within.removesuffix(".py").replace("/", ".") if within != self.name else self.path.stem

    def site(self, node: ast.expr, next: list[str]) -> Site:
        return Site(self.name, self.functions.get(id(node), ""), node.lineno, next)


def find(root: Path) -> Found:
    """Read ``module_utils``, ``library`` and ``plugins/action`` under ``root``. Raises DocumentError."""
    cores = [Source.read(path, root) for path in sorted(root.glob("module_utils/aerie/**/*.py"))]
    modules = [Source.read(path, root) for path in sorted(root.glob("library/*.py"))]
    plugins = [Source.read(path, root) for path in sorted(root.glob("plugins/action/*.py"))]
    reports = [Source.read(path, root) for path in sorted(root.glob("module_utils/aerie_reports/*.py"))]
    declared: dict[tuple[str, str], Kind] = {}
    for source in cores:
        for name, kind in _declarations(source):
            declared[source.module, name] = kind
    by_code: dict[str, Kind] = {}
    for kind in declared.values():
        if kind.code in by_code:
            other = by_code[kind.code]
            raise DocumentError(
                f"{kind.code} is declared in {other.file}:{other.line} and {kind.file}:{kind.line}"
            )
        by_code[kind.code] = kind
    for source in [*cores, *reports, *modules, *plugins]:
        for kind, site in _raised(source, declared):
            kind.sites.append(site)
    uncoded = [found for source in [*modules, *plugins] for found in _bare_failures(source)]
    for source in plugins:
        for code, site in _printed(source):
            if code not in by_code:
                raise DocumentError(
                    f"{site.file}:{site.line} prints [{code}], which no ErrorKind in module_utils/aerie declares; "
                    "declare it in module_utils/aerie/controller_errors.py"
                )
            by_code[code].sites.append(site)
    return Found(sorted(by_code.values(), key=lambda kind: kind.code), uncoded)


def _declarations(source: Source) -> Iterator[tuple[str, Kind]]:
    seen = 0
    for node in source.tree.body:
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        call = node.value
        if not (isinstance(call, ast.Call) and _is_error_kind(call)):
            continue
        seen += 1
        words = [one.value for one in call.args if isinstance(one, ast.Constant)]
        if len(words) != 2 or call.keywords:
            raise DocumentError(f"{source.name}:{call.lineno}: ErrorKind takes two plain strings")
        yield node.targets[0].id, Kind(str(words[0]), str(words[1]), source.name, call.lineno)
    everywhere = sum(isinstance(node, ast.Call) and _is_error_kind(node) for node in ast.walk(source.tree))
    if everywhere != seen:
        raise DocumentError(
            f"{source.name}: an ErrorKind is made elsewhere than as NAME = ErrorKind(…) at the top"
        )


def _is_error_kind(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "ErrorKind"


def _raised(source: Source, declared: dict[tuple[str, str], Kind]) -> Iterator[tuple[Kind, Site]]:
    """Every ``KIND.error(…)`` and ``module.KIND.error(…)``."""
    names, modules = _imports(source)
    for node in ast.walk(source.tree):
        if not (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "error"
        ):
            continue
        owner, key = node.func.value, None
        if isinstance(owner, ast.Name):
            key = names.get(owner.id, (source.module, owner.id))
        elif isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name):
            key = (modules.get(owner.value.id, ""), owner.attr)
        given = next((one.value for one in node.keywords if one.arg == "next"), None)
        if key not in declared:
            if given is None:
                continue  # another thing's method of this name, such as argparse's
            raise DocumentError(
                f"{source.name}:{node.lineno}: {ast.unparse(node.func)} names no declared ErrorKind"
            )
        if given is None or not node.args:
            raise DocumentError(f"{source.name}:{node.lineno}: an error needs what failed and next=")
        yield declared[key], source.site(node, renderings(given, source.tree))


def _imports(source: Source) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """Names imported from other cores, as ``{name: (file, its name there)}``, and cores imported whole."""
    names: dict[str, tuple[str, str]] = {}
    modules: dict[str, str] = {}
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        place = node.module or ""
        if node.level == 0 and not (place == CORES or place.startswith(CORES + ".")):
            continue
        package = source.module.split(".")[: -node.level] if node.level else []
        within = place if node.level else place.removeprefix(CORES).lstrip(".")
        stem = ".".join([*package, *filter(None, [within])])
        for alias in node.names:
            known = alias.asname or alias.name
            names[known] = (stem, alias.name)
            modules[known] = f"{stem}.{alias.name}".lstrip(".")
    return names, modules


def _texts(source: Source) -> Iterator[ast.expr]:
    """The outermost string expressions of a file, docstrings left out."""

    def walk(node: ast.AST) -> Iterator[ast.expr]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue
            text = isinstance(child, ast.Constant) and isinstance(child.value, str)
            if (
                text
                or isinstance(child, ast.JoinedStr)
                or (isinstance(child, ast.BinOp) and isinstance(child.op, ast.Add))
            ):
                yield child  # type: ignore[misc]
            else:
                yield from walk(child)

    yield from walk(source.tree)


def _printed(source: Source) -> Iterator[tuple[str, Site]]:
    """Every ``… [code] … Next: …`` in an action plugin's texts."""
    for expression in _texts(source):
        merged: dict[str, list[str]] = {}
        for text in renderings(expression, source.tree):
            if re.search(r"\[\{\w+\}\]", text):
                raise DocumentError(f"{source.name}:{expression.lineno}: write the code in [brackets] out")
            following = text.partition("Next: ")[2].strip()
            for code in CODE.findall(text):
                merged.setdefault(code, [])
                merged[code] += [following] if following and following not in merged[code] else []
        for code, following_texts in merged.items():
            yield code, source.site(expression, following_texts)


def _bare_failures(source: Source) -> Iterator[tuple[Site, str]]:
    """Every ``fail_json(msg=…)`` and ``raise AnsibleError(…)`` whose text has no code."""
    for node in ast.walk(source.tree):
        message = None
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "fail_json"
        ):
            message = next((one.value for one in node.keywords if one.arg == "msg"), None)
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            message = node.exc.args[0]
        if message is None:
            continue
        for text in renderings(message, source.tree):
            if not CODE.search(text):
                yield source.site(message, []), text
