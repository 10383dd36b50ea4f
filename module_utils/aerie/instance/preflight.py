"""Checks of the host that refuse a run before anything is touched."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Sequence
from pathlib import Path

from ..errors import ErrorKind
from ..files import read_json, sha256_of

MODEL_MISSING = ErrorKind(
    "model-missing",
    "A model directory, its config.json or one of its weight files is not on the host. SGLang would take the path for "
    "the name of a repository and fail after ten seconds with another message.",
)
MODEL_UNREADABLE = ErrorKind(
    "model-unreadable",
    "The service user cannot read a model's files, often because a parent directory is closed.",
)


def weight_files(model: Path) -> list[Path]:
    """The weight files that a model's index names, or the ones that lie there when it has no index."""
    index = read_json(model / "model.safetensors.index.json")
    if isinstance(index, dict) and isinstance(index.get("weight_map"), dict):
        return [model / name for name in sorted(set(index["weight_map"].values()))]
    found = sorted(p for p in model.iterdir() if p.suffix in (".safetensors", ".bin", ".gguf", ".pt"))
    return found


def check_model(role: str, path: str, variable: str) -> dict[str, str]:
    """Check that a model is whole and return ``{path, config_sha256}``.

    role: ``target`` or ``draft``; variable: the inventory variable to name in the error.
    """
    model = Path(path)
    config = model / "config.json"
    if not config.is_file():
        parent = next((p for p in model.parents if p.exists()), Path("/"))
        listing = sorted(p.name for p in parent.iterdir())[:10] if parent.is_dir() else []
        raise MODEL_MISSING.error(
            f"the {role} model {path} has no config.json on this host",
            evidence=[
                f"nearest directory that exists: {parent}",
                f"it holds: {', '.join(listing) or 'nothing'}",
            ],
            next=f"correct {variable}, or put the model there",
        )
    try:
        json.loads(config.read_text(encoding="utf-8"))
    except ValueError as error:
        raise MODEL_MISSING.error(
            f"{config} is not JSON", evidence=[str(error)], next=f"copy the {role} model again"
        ) from error
    weights = weight_files(model)
    missing = [one.name for one in weights if not one.is_file() or one.stat().st_size == 0]
    if missing or not weights:
        raise MODEL_MISSING.error(
            f"the {role} model {path} is not whole: "
            + (
                f"{len(missing)} of {len(weights)} weight files are missing"
                if weights
                else "it has no weight files"
            ),
            evidence=missing[:5],
            next=f"copy the {role} model again; half a download often has names ending in .incomplete",
        )
    return {"path": path, "config_sha256": sha256_of(config)}


def check_readable(paths: Sequence[Path], user: str, variable: str) -> bool:
    """Check that the service user can open each file; False when there is no such user yet.

    Raises model-unreadable with the reason for each file (five at most).
    """
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        return False
    if os.geteuid() != 0:
        return False
    bad = _unreadable(paths, user, account.pw_uid, account.pw_gid)
    if bad:
        raise MODEL_UNREADABLE.error(
            f"user {user} cannot read {len(bad)} of {len(paths)} files of {variable}",
            evidence=bad[:5],
            next=f"namei -l {bad[0].partition(': ')[0]}   # shows the closed directory or file",
        )
    return True


def _unreadable(paths: Sequence[Path], user: str, uid: int, gid: int) -> list[str]:
    """``path: reason`` for each file that the user cannot open. A fork tries it: no interpreter has to be readable."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            os.setgroups(os.getgrouplist(user, gid))
            os.setgid(gid)
            os.setuid(uid)
            for path in paths:
                try:
                    with path.open("rb") as file:
                        file.read(1)
                except OSError as error:
                    os.write(writer, f"{path}: {error.strerror}\n".encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8", errors="replace") as pipe:
        found = [line for line in pipe.read().splitlines() if line]
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
        found.append(f"the check itself could not run as {user}")
    return found
