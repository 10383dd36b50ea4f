"""How much a server still has to do while it drains, asked of itself where its release can say it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import health, processes
from ..release.rules import version_key

_TIMEOUT_S = 2.0
_METRICS = re.compile(rb"^sglang:num_(?:running|queue)_reqs(?:\{[^}]*\})? ([0-9.eE+]+)", re.MULTILINE)


@dataclass(frozen=True)
class Load:
    """``count`` requests that run or wait, or, where the server does not say, open connections."""

    count: int
    what: str = "request"

    def __str__(self) -> str:
        return f"{self.count} {self.what}{'' if self.count == 1 else 's'}"


def load_of(spec: Mapping[str, Any], host: str, port: int, api_key: str = "") -> Load:
    """What an instance has left to do. spec: the record of what runs (release, command).

    ``/v1/loads`` (0.5.9 and later) or ``/get_load``; else ``/metrics`` where it is on (open without a key, but renewed
    only every few decode steps); the number of established connections where none of them answers: an idle client that
    keeps its connection counts too then.
    """
    path = loads_path(str((spec.get("release") or {}).get("release") or ""))
    if path:
        answer = health.get(host, port, path, timeout=_TIMEOUT_S, api_key=api_key)
        count = parse_loads(answer.json()) if answer.ok else None
        if count is not None:
            return Load(count)
    if "--enable-metrics" in (spec.get("command") or []):
        answer = health.get(host, port, "/metrics", timeout=_TIMEOUT_S)
        found = _METRICS.findall(answer.body) if answer.ok else []
        if found:
            return Load(int(sum(float(one) for one in found)))
    return Load(processes.connections(port), "connection")


def loads_path(release: str) -> str:
    """Where a release says how many requests it has. ``/get_load`` is gone in 0.5.21, ``/v1/loads`` seen from 0.5.9."""
    try:
        return "/v1/loads?include=core" if version_key(release) >= (0, 5, 9, 0) else "/get_load"
    except ValueError:
        return ""


def parse_loads(body: Any) -> int | None:
    """Requests that run or wait over all ranks; None for an answer of another form."""
    rows = body.get("loads") if isinstance(body, Mapping) else body
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows) or not rows:
        return None
    total = 0
    for row in rows:
        running, waiting = row.get("num_running_reqs", row.get("num_reqs")), row.get("num_waiting_reqs", 0)
        if not isinstance(running, int) or not isinstance(waiting, int):
            return None
        # /get_load counts the waiting ones in num_reqs
        total += running + (waiting if "num_running_reqs" in row else 0)
    return total
