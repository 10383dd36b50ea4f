"""Run a measuring playbook, kill it after so many finished settings, run it again; print what the two did as JSON.

    python sweep.py PLAYBOOK INVENTORY SETTINGS [further words for ansible-playbook]

SETTINGS: kill once this many settings are in the journal. The reports directory is the one named with -e; what the runs
print, and how long their tasks took, goes to files in it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 1500


def command(playbook: str, inventory: str, words: tuple[str, ...]) -> list[str]:
    """As a person would type it."""
    tool = str(Path(sys.executable).parent / "ansible-playbook")
    return [tool, f"playbooks/{playbook}", "-i", inventory, *words]


def environment(folder: Path) -> dict[str, str]:
    """The project's own ansible.cfg, also where molecule has set another one; each task's seconds are kept."""
    return {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "tests" / "callbacks"),
        "ANSIBLE_CALLBACKS_ENABLED": "task_seconds",
        "AERIE_TASK_SECONDS": str(folder / "tasks.jsonl"),
        "PYTHONUNBUFFERED": "1",
    }


def journal(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest sweep's directory and the lines of its journal."""
    found = sorted(folder.glob("*/*/results.jsonl"))
    return (found[-1].parent, found[-1].read_text().splitlines()) if found else (None, [])


def run(words: list[str], folder: Path, number: int, settings: int | None = None) -> None:
    """One run into ``run-<number>.log``; SIGKILL for all of it once ``settings`` are finished."""
    log = folder / f"run-{number}.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            words,
            cwd=ROOT,
            env=environment(folder),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline, ended, killed = time.monotonic() + LIMIT_S, None, False
    try:
        while (ended := child.poll()) is None and time.monotonic() < deadline and not killed:
            time.sleep(0.1)
            killed = settings is not None and len(journal(folder)[1]) >= settings
    finally:
        if ended is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if not (killed if settings else ended == 0):
        sys.stderr.write(log.read_text(errors="replace")[-6000:])
        sys.exit(
            f"run {number} ended with {ended}, {len(journal(folder)[1])} settings finished; all of it: {log}"
        )


def names(lines: list[str]) -> list[str]:
    return [json.loads(line)["setting"]["name"] for line in lines]


def sweep(playbook: str, inventory: str, settings: int, words: tuple[str, ...]) -> dict[str, Any]:
    """Both runs; ``kept``: the first run's lines are still there, untouched."""
    given = next(word for word in words if word.startswith("sglang_tune_reports_dir="))
    folder = Path(given.partition("=")[2])
    line = command(playbook, inventory, words)
    folder.mkdir(parents=True, exist_ok=True)
    run(line, folder, 1, settings)
    before = journal(folder)[1]
    run(line, folder, 2)
    place, after = journal(folder)
    assert place is not None
    results = json.loads((place / "results.json").read_text())
    return {
        "before": names(before),
        "after": names(after),
        "kept": after[: len(before)] == before and len(set(names(after))) == len(after),
        "statuses": [setting["status"] for setting in results["settings"]],
        "verdict": results["verdict"],
        "accept_length": results["settings"][0]["accept_length"]["value"],
        "report": str(place / "report.html"),
        "predictions": results["predictions"],
    }


if __name__ == "__main__":
    print(json.dumps(sweep(sys.argv[1], sys.argv[2], int(sys.argv[3]), tuple(sys.argv[4:]))))
