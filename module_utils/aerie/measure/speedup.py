"""The gate on what speculation brings: judged by the last benchmark of the very deployment. Pure, but for one file.

It starts nothing and measures nothing: a speed-up needs a baseline, and a baseline needs two restarts. So benchmark.yml
and tune.yml leave their figures on the host, by digest, and this reads them before the running server is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import AerieError, ErrorKind
from ..files import read_json

UNKNOWN = ErrorKind(
    "speedup-unknown",
    "A speed-up against no speculation is required, and this very deployment was never compared with one: it was not "
    "benchmarked, or something about it has changed since.",
)
BELOW = ErrorKind(
    "speedup-below",
    "The last benchmark of this deployment does not show that speculation brings the required speed-up: the lower "
    "bound of its interval lies under it. The server works, but may be slower than without speculation.",
)

FILE = "benchmark.json"


def recorded(place: Path) -> Mapping[str, Any]:
    """Speed-ups by digest from the host's record; empty when there is none."""
    found = read_json(place / FILE)
    speedups = found.get("speedups") if isinstance(found, dict) else None
    return speedups if isinstance(speedups, dict) else {}


def judge(speedups: Mapping[str, Any], digest: str, required: float, batch: int | None = None) -> str:
    """Why the deployment passes, in words. ``batch`` None: the smallest batch size that was measured."""
    mine = speedups.get(digest)
    if not isinstance(mine, Mapping) or not mine:
        raise _unknown(digest, f"{len(speedups)} other deployments are in the record")
    size = str(batch) if batch is not None else min(mine, key=int)
    if size not in mine:
        raise _unknown(digest, f"batch {size} was not measured, but {', '.join(sorted(mine, key=int))}")
    low, value, high = (float(mine[size][name]) for name in ("low", "value", "high"))
    figure = f"x {value:.2f} [{low:.2f}, {high:.2f}] at batch {size}"
    if low >= required:
        return f"speculation gives {figure}: its lower bound clears {required:g}"
    raise BELOW.error(
        f"speculation gives {figure}, which is not shown to be at least {required:g}",
        evidence=[f"deployment {digest}"],
        next="ansible-playbook playbooks/benchmark.yml with more sglang_tune_prompts if the interval is wide, "
        "playbooks/tune.yml for another setting, or sglang_server_speculative: {} to serve without a draft",
    )


def _unknown(digest: str, why: str) -> AerieError:
    return UNKNOWN.error(
        "what speculation brings in this deployment is not known",
        evidence=[f"deployment {digest}", why],
        next="ansible-playbook playbooks/benchmark.yml, then this again",
    )
