"""What was true when a deployment was accepted, and what is true now: ``accepted.json`` in the deployment's directory.

Sizes and times stand for weights, which are too large to hash at each look: a file that is copied again has another
time. Source files are hashed where their size or time says that they were touched.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..draft import copy as draft_copy
from ..errors import AerieError
from ..files import read_json, sha256_of, write_json
from ..patch.store import PatchStore
from ..release import wheel_record
from .state import InstanceStore, now

FILE = "accepted.json"
# Files of the deployment itself that the server reads; what is in them may be secret, so no hash is kept.
_OWN = ("config.yaml", "logging.json", f"{draft_copy.DIRECTORY}/config.json")


def take(store: InstanceStore, digest: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Driver version, and ``[size, mtime_ns]`` of each file of the models and of the deployment's own."""
    from ..gpu.driver import kernel_driver_version

    models = {role: _files(Path(model["path"])) for role, model in (spec.get("models") or {}).items()}
    directory = store.deployment(digest)
    own = {name: mark for name in _OWN if (mark := _mark(directory / name))}
    return {"at": now(), "driver": kernel_driver_version() or "", "models": models, "own": own}


def of_configs(spec: Mapping[str, Any]) -> list[str]:
    """What is not as the record has it of the models' config.json, a line each."""
    lines = []
    for role, model in sorted((spec.get("models") or {}).items()):
        config = Path(model["path"]) / "config.json"
        if not config.is_file():
            lines.append(f"{role} model is gone: {config}")
        elif sha256_of(config) != model["config_sha256"]:
            lines.append(f"{role} model's config.json changed on disk: {config}")
    return lines


def keep(store: InstanceStore, digest: str, spec: Mapping[str, Any]) -> None:
    """Write it beside the deployment that was just accepted."""
    write_json(store.deployment(digest) / FILE, take(store, digest, spec))


def load(store: InstanceStore, digest: str) -> dict[str, Any]:
    """What was kept; empty for a deployment that never was accepted."""
    given = read_json(store.deployment(digest) / FILE) if digest else None
    return given if isinstance(given, dict) else {}


def _files(folder: Path) -> dict[str, list[int]]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return {}
    return {one.name: mark for one in entries if (mark := _mark(one))}


def _mark(path: Path) -> list[int]:
    """``[size, mtime_ns]`` of a plain file, links followed; nothing for anything else."""
    with suppress(OSError):
        seen = path.stat()
        if path.is_file():
            return [seen.st_size, seen.st_mtime_ns]
    return []


def changed_sources(deployment: Path, *, full: bool = False) -> list[str]:
    """``changed: sglang/…`` for each source file of a deployment's tree that is neither pristine nor patched by Aerie.

    full: hash every file, not only those that were touched since the tree was built. A tree that came without RECORD
    (a source checkout) has nothing to be compared with.
    """
    site = deployment / "site"
    try:
        recorded = [one for one in wheel_record.read_record(site, "sglang") if one.path.startswith("sglang/")]
        built_ns = None if full else (deployment / "spec.json").stat().st_mtime_ns
    except (AerieError, OSError):
        return []
    ours = PatchStore(site).manifest.files
    found = [
        str(one) for one in wheel_record.iter_differences(site, recorded, built_ns) if one.path not in ours
    ]
    for path, record in ours.items():
        target = site / path
        now_is = sha256_of(target) if target.is_file() else ""
        if now_is != record.after:
            found.append(f"changed: {path} (patched by Aerie)" if now_is else f"missing: {path}")
    return sorted(found)


def free_space(path: Path) -> tuple[int, int]:
    """Free bytes and files that root may still write below ``path``, or its nearest parent that is there."""
    while not path.exists():
        path = path.parent
    seen = os.statvfs(path)
    # File systems without a fixed number of files (btrfs, xfs on some kernels) say 0 of 0.
    return seen.f_bavail * seen.f_frsize, seen.f_favail if seen.f_files else 1 << 40
