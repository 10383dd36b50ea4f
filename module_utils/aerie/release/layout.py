"""Where releases live on a host, and what a look at it finds.

``<prefix>/venvs/<name>-<lock hash, 12 digits>-<n>``  one virtual environment; it never moves
``<prefix>/releases/<release>``, ``<prefix>/tools``    links to the one in use
``<prefix>/venvs/…/release.json``                      written last: a directory without it is a dead run's

``name`` is the release, or ``tools`` for the small environment that Aerie's own NVML modules run in.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

TOOLS = "tools"
RECORD_NAME = "release.json"
_VENV_NAME = re.compile(r"^(?P<name>.+)-(?P<lock>[0-9a-f]{12})-(?P<number>[0-9]+)$")


@dataclass(frozen=True)
class Layout:
    """The paths under one prefix."""

    prefix: Path

    @property
    def venvs(self) -> Path:
        return self.prefix / "venvs"

    @property
    def wheels(self) -> Path:
        """Wheels that the controller brought."""
        return self.prefix / "wheels"

    @property
    def lock_file(self) -> Path:
        """Held with flock by the run that builds, and by the pip that it started."""
        return self.venvs / ".lock"

    @property
    def failed_log(self) -> Path:
        """Everything that pip printed in the last failed build."""
        return self.venvs / ".failed-install.log"

    def link(self, name: str) -> Path:
        return self.prefix / TOOLS if name == TOOLS else self.prefix / "releases" / name

    def venv(self, name: str, lock_sha256: str, number: int) -> Path:
        return self.venvs / f"{name}-{lock_sha256[:12]}-{number}"


@dataclass(frozen=True)
class Record:
    """The contents of release.json.

    python_real is the interpreter that the environment was made from, links resolved; completed_ns is when it
    was complete, in nanoseconds since 1970. package_dir and dist_info are sglang's; empty for the tools.
    """

    release: str
    path: str
    python: str
    python_real: str
    python_version: str
    package_dir: str
    dist_info: str
    lock_sha256: str
    source: str
    base_site_packages: str
    completed_ns: int
    complete: bool = True

    @property
    def site_packages(self) -> Path:
        return Path(self.path) / "lib" / f"python{self.python_version}" / "site-packages"


@dataclass(frozen=True)
class Venv:
    """One directory under ``venvs``. ``record`` is None for what a dead run left."""

    path: Path
    name: str
    number: int
    record: Record | None


@dataclass(frozen=True)
class Host:
    """What a look at the host found.

    links: name -> the directory that its link names, for links that exist.
    named: environments that some instance's deployment names; None when a deployment could not be read, and
    then nothing may be pruned.
    """

    venvs: tuple[Venv, ...]
    links: dict[str, Path]
    named: frozenset[Path] | None


def read_record(venv: Path) -> Record | None:
    """The record of a complete environment; None when it is missing, unreadable or another directory's."""
    try:
        data = json.loads((venv / RECORD_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    known = {field.name for field in fields(Record)}
    if not isinstance(data, dict) or data.get("complete") is not True or data.get("path") != str(venv):
        return None
    try:
        return Record(**{key: value for key, value in data.items() if key in known})
    except TypeError:
        return None


def write_record(record: Record) -> None:
    """Write release.json so that it is whole or absent, also after a power cut."""
    path = Path(record.path) / RECORD_NAME
    aside = path.with_suffix(".tmp")
    with aside.open("w", encoding="utf-8") as stream:
        json.dump(asdict(record), stream, indent=2, sort_keys=True)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    aside.replace(path)


def look(layout: Layout, state_dir: Path) -> Host:
    """Look at the host; reads only, a few milliseconds."""
    return Host(_venvs(layout), _links(layout), named_by_deployments(layout, state_dir))


def set_link(link: Path, target: Path) -> None:
    """Point ``link`` at ``target`` in one step: it names the old or the new directory, never nothing."""
    link.parent.mkdir(parents=True, exist_ok=True)
    aside = link.with_name(f".{link.name}.new")
    aside.unlink(missing_ok=True)
    aside.symlink_to(target)
    aside.replace(link)


def named_by_deployments(layout: Layout, state_dir: Path) -> frozenset[Path] | None:
    """Environments under ``layout`` that any deployment's spec.json names, whichever key it uses for them."""
    named: set[Path] = set()
    for spec in sorted(state_dir.glob("*/deployments/*/spec.json")):
        try:
            texts = _strings(json.loads(spec.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None
        for text in texts:
            named.update(_venv_of(layout, text))
    return frozenset(named)


def _venv_of(layout: Layout, text: str) -> list[Path]:
    """The environment that a path in a spec lies in, also when it goes through a link of ours."""
    if not text.startswith(str(layout.prefix) + "/"):
        return []
    found = []
    for path in (Path(text), Path(os.path.realpath(text))):
        if layout.venvs in path.parents:
            found.append(layout.venvs / path.relative_to(layout.venvs).parts[0])
    return found


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [text for item in value for text in _strings(item)] if isinstance(value, list) else []


def _venvs(layout: Layout) -> tuple[Venv, ...]:
    found = []
    for path in sorted(layout.venvs.glob("*")):
        match = _VENV_NAME.match(path.name)
        if match and path.is_dir() and not path.is_symlink():
            found.append(Venv(path, match["name"], int(match["number"]), read_record(path)))
    return tuple(found)


def _links(layout: Layout) -> dict[str, Path]:
    links = [layout.prefix / TOOLS, *sorted((layout.prefix / "releases").glob("*"))]
    return {link.name: Path(os.readlink(link)) for link in links if link.is_symlink()}  # noqa: PTH115
