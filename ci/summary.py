#!/usr/bin/env python3
"""What a deployment by ansible-runner came to, as JSON for a pipeline to show.

    python ci/summary.py ci/runner/artifacts/IDENT

Prints one object: ``status`` and ``rc`` of the run, and ``hosts``, for each host what the server role noted (outcome,
release, digest, accept length with its interval, seconds a phase), or the error that ended it before that. The exit
code is 0 when the run succeeded, 1 when it did not, 2 when there are no artifacts of one run to read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def files(artifacts: Path) -> list[tuple[int, Path]]:
    """The events by number, from 1; what a killed run had not numbered yet is left out."""
    found = (artifacts / "job_events").glob("*.json")
    return sorted((int(p.name.split("-")[0]), p) for p in found if not p.name.endswith("-partial.json"))


def mixed(artifacts: Path) -> bool:
    """Whether two runs wrote there: under a name that was used before, ansible-runner leaves the old events."""
    numbers = [number for number, _ in files(artifacts)]
    return len(set(numbers)) < len(numbers)


def events(artifacts: Path) -> Iterator[dict[str, Any]]:
    """The run's events, in order; a half-written file of a killed run is left out."""
    for _, path in files(artifacts):
        try:
            yield json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue


def noted(record: Any) -> dict[str, Any]:
    """The server role's note in a host's custom stats."""
    return record["aerie"] if isinstance(record, dict) and isinstance(record.get("aerie"), dict) else {}


def summarise(artifacts: Path) -> dict[str, Any]:
    """Collect status, custom stats and failures of one run."""
    hosts: dict[str, dict[str, Any]] = {}
    notes: dict[str, dict[str, Any]] = {}
    for event in events(artifacts):
        data = event.get("event_data") or {}
        if event.get("event") in ("runner_on_failed", "runner_on_unreachable") and not data.get(
            "ignore_errors"
        ):
            result = data.get("res") or {}
            hosts[data["host"]] = {
                "outcome": "unreachable" if event["event"] == "runner_on_unreachable" else "failed",
                "failure": {
                    "step": data.get("task", ""),
                    "code": (result.get("error") or {}).get("code", ""),
                    "message": str(result.get("msg", "")),
                },
            }
        # The task's own event: ansible-runner 2.4 keeps no custom stats of single hosts at the end of a run. A later
        # note adds to the one before it, as set_stats does.
        note = noted(((data.get("res") or {}).get("ansible_stats") or {}).get("data"))
        if note and event.get("event") == "runner_on_ok":
            notes.setdefault(data["host"], {}).update(note)
    return {
        "status": _line(artifacts / "status") or "unknown",
        "rc": int(_line(artifacts / "rc") or 1),
        # The role's own note says more than the events, whichever came last.
        "hosts": hosts | {host: {**hosts.get(host, {}), **note} for host, note in notes.items()},
    }


def _line(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def main(argv: list[str]) -> int:
    if len(argv) != 1 or not (Path(argv[0]) / "job_events").is_dir():
        print(f"no artifacts of ansible-runner in {argv[:1] or 'nothing given'}", file=sys.stderr)
        print("Next: python ci/summary.py ci/runner/artifacts/IDENT", file=sys.stderr)
        return 2
    if mixed(Path(argv[0])):
        print(f"{argv[0]} holds the events of more than one run", file=sys.stderr)
        print("Next: remove it, and give each run an --ident of its own", file=sys.stderr)
        return 2
    summary = summarise(Path(argv[0]))
    print(json.dumps(summary, indent=2, sort_keys=True))
    return 0 if summary["rc"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
