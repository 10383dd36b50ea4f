"""What the runs of the matrix found, a line of JSON each, so that a full run can be made in several sittings.

Every outcome carries the commit that it was seen with: the last one that touched what runs or what tests it.
"""

from __future__ import annotations

import functools
import json
import subprocess
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "reports" / "faults.jsonl"
# What an outcome depends on; a commit of documents alone leaves it standing.
MATTERS = (
    "ansible.cfg", "library", "molecule/faults", "molecule/faults_engine", "module_utils", "playbooks", "plugins",
    "roles", "tests/faults",
)  # fmt: skip


@functools.cache
def commit() -> str:
    """The last commit of what matters, with a + when there are changes on top of it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    last = git("log", "-1", "--format=%h", "--", *MATTERS) or "no commit"
    return last + ("+" if git("status", "--porcelain", "--", *MATTERS) else "")


def write(line: dict[str, Any]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")


def stamped(line: dict[str, Any]) -> dict[str, Any]:
    """With the commit and the day."""
    return {**line, "commit": commit(), "at": time.strftime("%Y-%m-%d", time.gmtime())}


def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def survived_now() -> set[str]:
    """The tests whose last outcome with this very commit was that they passed, with nothing left to do."""
    last = {one["test"]: one for one in lines() if "outcome" in one and one.get("commit") == commit()}
    return {name for name, one in last.items() if one["outcome"] == "passed" and not one.get("rest")}


def points_now() -> dict[str, dict[str, Any]]:
    """The points of the kill matrix that were made with this very commit, by name; the last outcome of each."""
    return {one["point"]: one for one in lines() if "point" in one and one.get("commit") == commit()}


def recorded_now() -> dict[str, list[dict[str, Any]]]:
    """The points of the run to each mode that was recorded with this very commit."""
    return {
        one["recorded"]: one["points"]
        for one in lines()
        if "recorded" in one and one.get("commit") == commit()
    }
