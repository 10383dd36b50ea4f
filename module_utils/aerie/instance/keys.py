"""The API keys of a deployment, read where they lie: in its ``config.yaml``, which is JSON that Aerie wrote."""

from __future__ import annotations

from pathlib import Path

from ..errors import ErrorKind
from ..files import read_json

KEY_MISSING = ErrorKind(
    "api-key-missing", "A server that asks for an API key was to be asked, but its deployment holds none."
)


def server_key(path: Path) -> str:
    """A key that the server takes, '' when it has none. Never part of a result."""
    given = read_json(path)
    keys = given if isinstance(given, dict) else {}
    return str(keys.get("api-key") or keys.get("admin-api-key") or "")


def client_key(given: str | None, file: str | None) -> str | None:
    """The key for a server: ``given``, else the one in the deployment's file; None for a server without one.

    Raises api-key-missing when a file is named that holds none: without a key every answer would be a mute HTTP 401.
    """
    if given or not file:
        return given or None
    found = server_key(Path(file))
    if not found:
        raise KEY_MISSING.error(
            f"{file} holds no API key" if Path(file).is_file() else f"there is no {file}",
            next=f"ls -l {Path(file).parent}; when that directory is gone, the next run builds it anew",
        )
    return found
