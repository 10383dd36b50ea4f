"""Run a measuring playbook, kill it after so many finished settings, run it again; print what the two did as JSON.

    python sweep.py PLAYBOOK INVENTORY SETTINGS [further words for ansible-playbook]

SETTINGS: kill once this many settings are in the journal. The reports directory is the one named with -e.
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


def environment() -> dict[str, str]:
    """The project's own ansible.cfg, also where molecule has set another one."""
    return {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}


def journal(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest sweep's directory and the lines of its journal."""
    found = sorted(folder.glob("*/*/results.jsonl"))
    return (found[-1].parent, found[-1].read_text().splitlines()) if found else (None, [])


def run_and_kill(words: list[str], folder: Path, settings: int) -> list[str]:
    """Start, wait for so many finished settings, SIGKILL; the lines that were kept."""
    child = subprocess.Popen(words, cwd=ROOT, env=environment(), stdout=sys.stderr, start_new_session=True)
    deadline = time.monotonic() + LIMIT_S
    try:
        while len(journal(folder)[1]) < settings:
            if child.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"it ended with {child.poll()} before {settings} settings were finished")
            time.sleep(0.1)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return journal(folder)[1]


def names(lines: list[str]) -> list[str]:
    return [json.loads(line)["setting"]["name"] for line in lines]


def sweep(playbook: str, inventory: str, settings: int, words: tuple[str, ...]) -> dict[str, Any]:
    """Both runs; ``kept``: the first run's lines are still there, untouched."""
    given = next(word for word in words if word.startswith("sglang_tune_reports_dir="))
    folder = Path(given.partition("=")[2])
    line = command(playbook, inventory, words)
    before = run_and_kill(line, folder, settings)
    done = subprocess.run(line, cwd=ROOT, env=environment(), stdout=sys.stderr, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        sys.exit(f"the resumed run exited {done.returncode}")
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
