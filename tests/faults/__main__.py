"""`make faults`: the whole fault matrix on a fresh host, and docs/faults.md written from what it did.

python tests/faults [further words for pytest]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
RESULTS = ROOT / "reports" / "faults.jsonl"
PAGE = ROOT / "docs" / "faults.md"

HEAD = """<!-- Written by `make faults`. Do not edit: the next full run writes it anew. -->

# Faults

Each fault is made on a real systemd host over real ssh. The server is a double of SGLang's HTTP interface
(`tests/faults/double`), because a real one cannot be made to misbehave on demand; ansible-playbook, modules, systemd,
nftables and the file system are real. After each fault the host is looked at from outside Ansible: phase, current and
accepted deployment, unit, boot, health, firewall, lease. `make test` makes one of each kind.

"""
NOT_COVERED = """
## Not covered

| What | Why |
| --- | --- |
| GPU memory freed late, never, or held by a container | `molecule/gpu_host`, on a double of the driver |
| Detokenizer killed, launcher stays | a process layout that only the real engine has |
| A crash during a real graph capture | needs a GPU; here the double only prints the log lines and ends |
| Clock stepped | test hosts share the machine's clock; the lease counts by the boot clock, which unit tests cover |
| Both laptops' machine-ids equal (cloned machines) | host name and pid namespace are compared too; not run |
| Disk full in the middle of a write | a full disk before a build and a read-only one in the middle are run |
"""


def page(rows: Sequence[dict[str, Any]], seconds: float) -> str:
    """The document: counts, then a line a fault."""
    survived = sum(1 for row in rows if row["outcome"] == "passed")
    text = HEAD + f"{survived} of {len(rows)} survived, {rows[0]['at']}, in {seconds / 60:.0f} min.\n\n"
    text += "| Kind | Fault, and what has to happen | Case | Outcome |\n| --- | --- | --- | --- |\n"
    for row in rows:
        case = row["test"].partition("[")[2].rstrip("]")
        outcome = "survived" if row["outcome"] == "passed" else "**failed**"
        detail = f"; {row['detail']}" if row["detail"] else ""
        text += f"| {row['kind']} | {row['what']} | {case} | {outcome}{detail} |\n"
    return text + NOT_COVERED


def main() -> int:
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "AERIE_FAULTS": "all",
        "AERIE_FAULTS_RESULTS": str(RESULTS),
        "AERIE_FAULTS_WORDS": " ".join(sys.argv[1:]),
    }
    began = time.monotonic()
    done = subprocess.run(
        [str(BIN / "molecule"), "test", "--scenario-name", "faults"], cwd=ROOT, env=environment, check=False
    )
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    rows = [json.loads(line) for line in lines]
    if rows and not sys.argv[1:]:
        PAGE.write_text(page(rows, time.monotonic() - began))
        print(f"{PAGE.relative_to(ROOT)} written")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
