"""Run a playbook and kill it, and all that it started, when it comes to a task.

    python kill_at.py PLAYBOOK INVENTORY TEXT [further words for ansible-playbook]

TEXT: part of the line at which it is killed. Exits 1 when the playbook ends before.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LATER_S = 3.0  # into the task, not before it


def main(playbook: str, inventory: str, text: str, *words: str) -> None:
    tool = str(Path(sys.executable).parent / "ansible-playbook")
    child = subprocess.Popen(
        [tool, f"playbooks/{playbook}", "-i", inventory, *words],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    for line in child.stdout:
        sys.stderr.write(line)
        if text in line:
            time.sleep(LATER_S)
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return
    sys.exit(f"{playbook} ended with {child.wait()} before {text!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
