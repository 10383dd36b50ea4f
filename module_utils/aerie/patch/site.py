"""The tree that patches are for: a directory that holds the package sglang. Which release is it, who uses it?"""

from __future__ import annotations

import ast
import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from .. import processes
from ..errors import ErrorKind

NO_PACKAGE = ErrorKind(
    "no-sglang-there",
    "A directory that should hold the package sglang does not, or its release cannot be told.",
)
TREE_IN_USE = ErrorKind(
    "tree-in-use",
    "A running server imports from the tree that was to be patched. It would go on with the old code in some of its "
    "processes and the new in others.",
)

_SGLANG = re.compile(r"(?:^|/)sglang(?:$|[.:])")


def release_of(site: Path) -> str:
    """The release in a site-packages directory or the ``python`` directory of a source checkout.

    From the name of the dist-info, else ``PKG-INFO`` of an egg-info, else ``__version__`` in ``sglang/version.py`` or
    ``_version.py``. Raises no-sglang-there.
    """
    if not (site / "sglang" / "__init__.py").is_file():
        raise NO_PACKAGE.error(
            f"there is no sglang in {site}",
            next="give the directory that holds it: python3 -c 'import sglang, pathlib; "
            "print(pathlib.Path(sglang.__file__).parents[1])'",
        )
    dist_info = dist_info_of(site)
    if dist_info:
        return dist_info.name.removesuffix(".dist-info").rsplit("-", 1)[1]
    for path, pattern in (
        (site / "sglang.egg-info" / "PKG-INFO", r"^Version: (\S+)$"),
        (site / "sglang" / "version.py", r"^__version__ = ['\"]([^'\"]+)"),
        (site / "sglang" / "_version.py", r"^__version__ = (?:version = )?['\"]([^'\"]+)"),
    ):
        if path.is_file():
            match = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
            if match:
                return match[1]
    raise NO_PACKAGE.error(
        f"nothing in {site} says which release of sglang it is",
        next="say it with the option release (sglang_patches_release)",
    )


def dist_info_of(site: Path) -> Path | None:
    """The dist-info directory of sglang. By its name alone: a site-packages has hundreds of others."""
    names = (entry.name for entry in os.scandir(site))
    found = [name for name in names if name.startswith("sglang-") and name.endswith(".dist-info")]
    return site / found[0] if found else None


def check_unused(site: Path) -> None:
    """Raise tree-in-use when a server runs from the tree."""
    users = list(servers(site))
    if not users:
        return
    first = users[0]
    unit = re.search(r"/([^/]+\.service)", first.cgroup)
    stop = f"systemctl stop {unit[1]}" if unit else f"kill {first.pid}"
    raise TREE_IN_USE.error(
        f"{site} is in use by a running server",
        evidence=[one.describe() for one in users[:8]],
        next=f"stop it, for example: {stop}; then run again",
    )


def servers(site: Path) -> Iterator[processes.Process]:
    """Processes of SGLang that import from the tree, as far as the caller may look at them."""
    real = site.resolve()
    for entry in sorted(processes.PROC.iterdir(), key=lambda one: one.name):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        process = processes.read_process(int(entry.name))
        if process and any(_SGLANG.search(word) for word in process.command) and _imports_from(process, real):
            yield process


def _imports_from(process: processes.Process, site: Path) -> bool:
    """By import path, by working directory, by its environment's site-packages, or by a library that it has mapped."""
    directory = processes.PROC / str(process.pid)
    environment = processes.read_environment(process.pid) or {}
    words = environment.get("PYTHONPATH", "").split(":")
    places = {Path(word).resolve() for word in words if word.startswith("/")}
    with contextlib.suppress(OSError):
        places.add((directory / "cwd").resolve(strict=True))
    prefixes = [environment.get("VIRTUAL_ENV", "")]
    if process.command and process.command[0].startswith("/"):
        prefixes.append(str(Path(process.command[0]).parent.parent))
    for prefix in filter(None, prefixes):
        for packages in Path(prefix).glob("lib/python3*/site-packages"):
            places |= {packages.resolve(), *_editable(packages)}
    if site in places:
        return True
    try:
        maps = (directory / "maps").read_text(errors="replace")
    except OSError:
        return False
    return f" {site}/" in maps


def _editable(packages: Path) -> Iterator[Path]:
    """Directories that an editable install of sglang adds to the import path."""
    for path in packages.glob("*sglang*.pth"):
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith("/"):
                yield Path(line.strip()).resolve()
    for path in packages.glob("__editable___sglang*_finder.py"):
        match = re.search(r"^MAPPING[^=]*= (\{.*\})$", path.read_text(errors="replace"), re.MULTILINE)
        try:
            mapping = ast.literal_eval(match[1]) if match else {}
        except (ValueError, SyntaxError):
            mapping = {}
        if isinstance(mapping, dict) and isinstance(mapping.get("sglang"), str):
            yield Path(mapping["sglang"]).resolve().parent
