"""A deployment: a spec made into a directory, complete or not there at all.

``<digest>/site/`` holds the instance's own copy of the ``sglang`` package with its dist-info and comes first on the
import path, so that a tree can be patched while another server runs and going back is switching a link.
``<digest>/draft/`` is there when the draft is served with other layer ids than its checkpoint names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..draft import copy as draft_copy
from ..errors import ErrorKind
from ..files import write_atomic, write_json
from ..patch.store import DIRECTORY as PATCHED
from .spec import CONFIG, Spec, resolved
from .state import InstanceStore

if TYPE_CHECKING:
    from ..patch.entry import Entry

COPY_FAILED = ErrorKind(
    "tree-copy-failed", "The sglang package could not be copied into the deployment's own tree."
)
NO_SPACE = ErrorKind(
    "no-disk-space", "A file system has too little room for the next step; nothing was changed."
)

BUILDING = ".building-"
# Twenty times the package of 0.5.23 with its byte-code (222 MiB). Looking at its ten thousand files costs 0.15 s.
PLENTY = 4 << 30
# The engine logs all its arguments, API keys among them, at INFO through this logger: read in 0.5.9, 0.5.12, 0.5.17
# and 0.5.19 to 0.5.23, seen with a random key on the CPU engine.
ARGUMENTS_LOGGER = "sglang.srt.entrypoints.engine"


def logging_config() -> dict[str, object]:
    """A dictConfig for SGLANG_LOGGING_CONFIG_PATH that keeps ``server_args=`` out of the journal."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"format": "[%(asctime)s] %(message)s", "datefmt": "%Y-%m-%d %H:%M:%S"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
        "root": {"level": "INFO", "handlers": ["stderr"]},
        "loggers": {
            ARGUMENTS_LOGGER: {"level": "WARNING"},
            "httpx": {"level": "WARNING"},
            "httpcore": {"level": "WARNING"},
        },
    }


def tree_bytes(package_dir: Path) -> int:
    """Bytes that a copy of the package takes. Ten thousand files, so without a Path for each."""
    total, left = 0, [str(package_dir)]
    while left:
        with os.scandir(left.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
                elif entry.is_file():
                    total += entry.stat().st_size
    return total


def _room(path: Path) -> tuple[int, Path]:
    """Free bytes of the file system, and the nearest directory of ``path`` that is there."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free, path


def check_space(path: Path, needed: int) -> None:
    """Raise no-disk-space when the file system of ``path`` has less than ``needed`` bytes and 64 MiB to spare."""
    free, place = _room(path)
    if free < needed + (64 << 20):
        raise NO_SPACE.error(
            f"{place} has {free >> 20} MiB free; the deployment needs {(needed >> 20) + 64} MiB",
            next=f"free some room (df -h {place}) and run again",
        )


def check_room(path: Path, package_dir: Path) -> None:
    """Raise no-disk-space when a copy of the package does not fit; its files are counted only where room is short."""
    if _room(path)[0] < PLENTY:
        check_space(path, tree_bytes(package_dir))


def build(
    store: InstanceStore,
    spec: Spec,
    secrets: Mapping[str, str],
    gid: int,
    patches: Sequence[Entry] = (),
    *,
    replace: bool = False,
) -> Path:
    """Make the deployment's directory aside and rename it into place.

    A complete one is left as it is, or with ``replace`` (somebody edited it) exchanged for the new one at the end.

    secrets: server arguments that go into the configuration file, readable by root and the service's group only.
    patches: what the copy of the package gets; ``patches.json`` keeps what became of each. Raises the errors of
    ``patch_tree``.
    """
    from ..patch import tree as patch_tree  # a dozen files that no other step needs

    final = store.deployment(spec.digest)
    if store.spec(spec.digest) is not None and not replace:
        return final
    store.create()
    sweep(store)
    package = Path(spec.release.package_dir)
    check_room(store.root, package)
    aside = store.deployments / f"{BUILDING}{spec.digest}"
    site = aside / "site"
    site.mkdir(parents=True)
    aside.chmod(0o755)
    site.chmod(0o755)
    _copy(package, site)
    if spec.release.dist_info:
        _copy(Path(spec.release.dist_info), site)
    if (package.parent / PATCHED).is_dir():
        _copy(package.parent / PATCHED, site)  # somebody's own install, patched: the copy has to know
    patched = patch_tree.apply(site, spec.release.release, patches, durable=False).as_dict()
    del patched["diff"]
    write_json(aside / "patches.json", patched)
    draft = spec.models.get("draft")
    if draft is not None and draft_copy.is_copied(draft):
        draft_copy.make(aside / draft_copy.DIRECTORY, draft)
    if secrets:
        # JSON is YAML; SGLang reads only names that end in .yaml or .yml
        text = json.dumps({name.replace("_", "-"): value for name, value in secrets.items()})
        write_atomic(aside / CONFIG, text + "\n", mode=0o640, gid=gid)
        write_json(aside / "logging.json", logging_config())
    record = spec.as_dict()
    write_atomic(aside / "unit.service", resolved(record, str(final))["unit"])
    write_json(aside / "spec.json", record)
    if final.exists():  # a kill between the two leaves none, and the next run builds it
        final.rename(store.deployments / f"{BUILDING}{spec.digest}.edited")
    aside.rename(final)
    sweep(store)
    return final


def renew_record(store: InstanceStore, spec: Spec) -> None:
    """Bring the record of a complete deployment up to lines of its unit that are no part of its digest.

    Its time stays that of the build, since source files that are younger count as touched.
    """
    directory = store.deployment(spec.digest)
    path, record = directory / "spec.json", spec.as_dict()
    if store.spec(spec.digest) in (None, record):
        return
    built_ns = path.stat().st_mtime_ns
    write_atomic(directory / "unit.service", resolved(record, str(directory))["unit"])
    write_json(path, record, mtime_ns=built_ns)


def _copy(source: Path, into: Path) -> None:
    # cp keeps times to the nanosecond, so the byte-code of the release stays valid; reflinks where they exist
    done = subprocess.run(
        ["cp", "--archive", "--reflink=auto", "--no-preserve=ownership", "--", str(source), str(into)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise COPY_FAILED.error(
            f"copying {source} failed",
            evidence=done.stderr.splitlines()[-5:],
            next="look at the disk: df -h; dmesg",
        )


def sweep(store: InstanceStore) -> list[str]:
    """Remove half-made deployments that a dead run left."""
    left = sorted(store.deployments.glob(BUILDING + "*")) if store.deployments.is_dir() else []
    for path in left:
        shutil.rmtree(path)
    return [path.name for path in left]


def prune(store: InstanceStore, keep: list[str]) -> list[str]:
    """Remove complete deployments that are not in ``keep``."""
    removed = []
    for path in sorted(store.deployments.iterdir()):
        if path.name not in keep and not path.name.startswith("."):
            shutil.rmtree(path)
            removed.append(path.name)
    return removed
