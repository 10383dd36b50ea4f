"""Confirm the rules of a release from its installed source: which class captures what, and when.

Works on the directory that holds ``sglang`` (a venv's site-packages, an unpacked wheel, a deployment's patched copy),
by syntax tree only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .source_method import METHOD, CannotInterpret, Effect, interpret

_VERSION = re.compile(r"^(?:__version__|version)\b[^=\n]*=[^\n]*?['\"]([0-9][^'\"]*)['\"]", re.M)
_DEPTH = 8  # bases and delegations followed before giving up


@dataclass(frozen=True)
class ClassSource:
    """A class and the file that it stands in."""

    file: Path
    node: ast.ClassDef

    def own_method(self, name: str) -> ast.FunctionDef | None:
        """The method as this class itself defines it."""
        for part in self.node.body:
            if isinstance(part, ast.FunctionDef) and part.name == name:
                return part
        return None


@lru_cache(maxsize=512)
def _text(file: Path) -> str:
    # Some files of 0.4 begin with a byte order mark.
    return file.read_text(encoding="utf-8-sig", errors="replace")


def mentions(file: Path, name: str) -> bool:
    """Whether the name stands in the file at all. Cheap beside its syntax tree, which tells code from comments."""
    return name in _text(file)


@lru_cache(maxsize=256)
def parsed(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(_text(file))


def _entries(file: Path) -> list[str]:
    """Names in the file's ``EntryClass``."""
    found = re.search(r"^EntryClass\b[^=]*=\s*(\[[^\]]*\]|\w+)", _text(file), re.M)
    return [] if found is None else re.findall(r"\w+", re.sub(r"#.*", "", found.group(1)))


class SourceTree:
    """The ``sglang`` package under one directory."""

    def __init__(self, site_packages: Path) -> None:
        self.package = site_packages / "sglang"
        self.models = self.package / "srt" / "models"
        self._classes: dict[str, list[Path]] | None = None

    def present(self) -> bool:
        """Whether the directory holds an SGLang at all."""
        return self.models.is_dir()

    def release(self) -> str | None:
        """The release that the tree says it is, or None where it does not say."""
        for name in ("_version.py", "version.py"):
            file = self.package / name
            if file.is_file():
                found = _VERSION.search(_text(file))
                if found:
                    return found.group(1)
        for directory in sorted(self.package.parent.glob("sglang-*.dist-info")):
            return directory.name[len("sglang-") : -len(".dist-info")]
        return None

    def _index(self) -> dict[str, list[Path]]:
        """Files by the names of the top-level classes in them."""
        if self._classes is None:
            self._classes = {}
            for file in sorted(self.models.rglob("*.py")):
                for name in re.findall(r"^class (\w+)", _text(file), re.M):
                    self._classes.setdefault(name, []).append(file)
        return self._classes

    def class_named(self, name: str, *, near: Path | None = None) -> ClassSource | None:
        """The class of a model. The file ``near`` wins, then one that lists it in ``EntryClass``, then any other."""
        found: list[tuple[int, str, ClassSource]] = []
        for file in self._index().get(name, []):
            for node in parsed(file).body:
                if isinstance(node, ast.ClassDef) and node.name == name:
                    rank = 0 if file == near else 1 if name in _entries(file) else 2
                    found.append((rank, str(file), ClassSource(file, node)))
        return min(found, key=lambda item: item[:2])[2] if found else None

    def method(
        self, owner: ClassSource, name: str, depth: int = 0
    ) -> tuple[ClassSource, ast.FunctionDef] | None:
        """A method with the class that defines it, own or inherited from a class of ``srt/models``."""
        own = owner.own_method(name)
        if own is not None:
            return owner, own
        if depth >= _DEPTH:
            return None
        for base in owner.node.bases:
            base_name = ast.unparse(base).rpartition(".")[2]
            base_class = self.class_named(base_name, near=owner.file) if base_name else None
            found = self.method(base_class, name, depth + 1) if base_class else None
            if found is not None:
                return found
        return None

    def entry_classes(self) -> Iterator[str]:
        """Every architecture that the tree can serve, by the files' ``EntryClass``."""
        for file in sorted(self.models.rglob("*.py")):
            yield from _entries(file)

    def supports_capture(self, architecture: str) -> bool | None:
        """Whether the class has the method that EAGLE-3 needs; None where the class is not in the tree."""
        owner = self.class_named(architecture)
        return None if owner is None else self.method(owner, METHOD) is not None

    def capture(self, architecture: str, ids: Sequence[int] | None, layers: int) -> Effect:
        """Loop indices that the class captures for ``ids``; delegation is followed to the model that is set.

        Raises CannotInterpret.
        """
        owner = self.class_named(architecture)
        if owner is None:
            raise CannotInterpret(f"no class {architecture} in {self.models}")
        return self._capture(owner, ids, layers, 0)

    def _capture(self, owner: ClassSource, ids: Sequence[int] | None, layers: int, depth: int) -> Effect:
        found = self.method(owner, METHOD)
        if found is None or depth >= _DEPTH:
            raise CannotInterpret(f"{owner.node.name} has no {METHOD}")
        effect = interpret(found[1], ids, layers)
        if not effect.delegated:
            return effect
        inner = self._class_of_attribute(owner, effect.delegated)
        if inner is not None:
            return self._capture(inner, effect.passed, layers, depth + 1)
        if effect.passed is None:
            raise CannotInterpret(f"{owner.node.name}: class of self.{effect.delegated} is not known")
        return Effect(effect.passed, effect.flags)

    def _class_of_attribute(self, owner: ClassSource, attribute: str) -> ClassSource | None:
        """The class that ``__init__`` puts into ``self.<attribute>``; None where that is not one known class."""
        found = self.method(owner, "__init__")
        if found is None:
            return None
        defaults = _parameter_defaults(found[1])
        for node in ast.walk(found[1]):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            if not any(ast.unparse(target) == f"self.{attribute}" for target in node.targets):
                continue
            called = ast.unparse(node.value.func)
            inner = self.class_named(defaults.get(called, called), near=found[0].file)
            if inner is not None and self.method(inner, METHOD) is not None:
                return inner
        return None


def _parameter_defaults(function: ast.FunctionDef) -> dict[str, str]:
    """Names of classes that are defaults of parameters (``language_model_cls=Qwen3LLMModel``)."""
    arguments = function.args.args
    defaults = function.args.defaults
    pairs = list(zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True))
    keywords = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    pairs += [(argument, default) for argument, default in keywords if default is not None]
    return {argument.arg: default.id for argument, default in pairs if isinstance(default, ast.Name)}
