"""What the gates have to know of the server that they look at, from its record alone: the same for a new deployment
and for one that is gone back to."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from ..health import url_host
from .restore import address


def of_spec(spec: Mapping[str, Any], acceptance: Mapping[str, Any]) -> dict[str, Any]:
    """Options for the gates of a deployment; ``acceptance``: its entry in the history, if any."""
    host, port = address(spec)
    command = list(spec.get("command") or [])
    values = dict(pairwise(command))
    found: dict[str, Any] = {
        "host": host,
        "port": port,
        "url": f"http://{url_host(host)}:{port}",
        "model_path": spec["models"]["target"]["path"],
        "python": spec["release"]["python"],
        "user": spec["user"],
        "trust_remote_code": "--trust-remote-code" in command,
        "speculative": "--speculative-algorithm" in command,
    }
    for name in ("num_steps", "num_draft_tokens"):
        value = values.get(f"--speculative-{name.replace('_', '-')}", "")
        if value.isdigit():
            found[name] = int(value)
    floor = (acceptance.get("gates") or {}).get("min_accept_length")
    if floor is not None:
        found["accepted_floor"] = floor
    return found


def of_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same as far as it is known before the release is installed (check mode)."""
    host, port = settings["host"], settings["port"]
    return {
        "host": host,
        "port": port,
        "url": f"http://{url_host(host)}:{port}",
        "model_path": settings["model_path"],
        "python": "/usr/bin/python3",
        "user": settings["user"],
        "trust_remote_code": False,
        "speculative": bool(settings["speculative"]),
    }
