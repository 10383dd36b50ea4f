"""The API keys of a deployment, read where they lie: in its ``config.yaml``, which is JSON that Aerie wrote."""

from __future__ import annotations

from pathlib import Path

from ..files import read_json


def server_key(path: Path) -> str:
    """A key that the server takes, '' when it has none. Never part of a result."""
    given = read_json(path)
    keys = given if isinstance(given, dict) else {}
    return str(keys.get("api-key") or keys.get("admin-api-key") or "")
