"""Files written so that a kill leaves the old or the new one, never a part."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_atomic(
    path: Path,
    text: str | bytes,
    *,
    mode: int = 0o644,
    uid: int = 0,
    gid: int = 0,
    mtime_ns: int | None = None,
) -> None:
    """Replace ``path`` by ``text`` with the given mode, owner and time, synced before it is renamed into place."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    fresh = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
            file.flush()
            os.fsync(file.fileno())
        fresh.chmod(mode)
        if os.geteuid() == 0:
            os.chown(name, uid, gid)
        if mtime_ns is not None:
            os.utime(name, ns=(mtime_ns, mtime_ns))
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any, *, mode: int = 0o644, mtime_ns: int | None = None) -> None:
    """:func:`write_atomic` for JSON, readable by people."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    write_atomic(path, text, mode=mode, mtime_ns=mtime_ns)


def read_json(path: Path) -> Any:
    """The file's JSON, or None when there is no such file or it holds something else."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def read_text(path: Path) -> str | None:
    """The file's text, or None when there is no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def replace_link(link: Path, target: str) -> None:
    """Point ``link`` at ``target`` in one step."""
    fresh = link.with_name(f".{link.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)
