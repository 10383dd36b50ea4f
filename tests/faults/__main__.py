"""`make faults`: the whole fault matrix on a fresh host, and docs/faults.md written from what it did.

python tests/faults [further words for pytest]   with words the results of earlier runs are kept, test by test
python tests/faults --resume [words]             leaves out what has survived with the commit that is checked out
python tests/faults --engine [words]             those that need a real SGLang, on the CPU, on a host of their own
python tests/faults --page                       only write the page, from the results there are
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from results import RESULTS, ROOT, lines

BIN = Path(sys.executable).parent
PAGE = ROOT / "docs" / "faults.md"
OUTCOMES = {"passed": "survived", "failed": "failed", "part": "survived in part", None: "not run"}

HEAD = """<!-- Written by `make faults`. Do not edit: the next full run writes it anew. -->

# Faults

Each fault is made on a real systemd host over real ssh. The server is a double of SGLang's HTTP interface
(`tests/server_double`), because a real one cannot be made to misbehave on demand; ansible-playbook, modules, systemd,
nftables and the file system are real. Faults of a kind with "real engine" are made to SGLang 0.5.23 itself, with a real
EAGLE-3 draft, on the CPU (scenario `faults_engine`). After each fault the host is looked at from outside Ansible:
phase, current and accepted deployment, unit, boot, health, firewall, lease. `make test` makes one of each kind. "Not
run" says that a fault is written down as a test and that the runs which this page was written from did not make it.
"Failed" is the last outcome that was seen, whatever was corrected since.

"""
NOT_COVERED = """
## Not covered

| What | Why |
| --- | --- |
| A real GPU | here a double of the driver's library (`tests/nvml`); on H200s: `tests/gpu/results/2026-11-30-two-h200` |
| A launcher that outlives its dead detokenizer | simulated by the double; that of 0.5.23 ends with it, as seen above |
| A crash during a real graph capture | here the double only prints the lines and ends; made on an H200, same record |
| A clock stepped under a run | hosts share the machine's; leases count by the boot clock, waits by the monotonic one |
"""


def page(found: Sequence[dict[str, Any]]) -> str:
    """The document: counts, then a line a fault with its last outcome; a fault that no run made is named as such."""
    everything = next(line["all"] for line in reversed(found) if "all" in line)
    last = {line["test"]: line for line in found if "outcome" in line}
    rows = [{**last.get(one["test"], {}), **one} for one in everything]
    count = Counter(outcome(row) for row in rows)
    counts = ", ".join(
        f"{count[word]} {word}" for word in OUTCOMES.values() if count[word] or word != "survived in part"
    )
    text = HEAD + f"{len(rows)} faults: {counts}.\n{seen_with(rows)}\n"
    text += "| Kind | Fault, and what has to happen | Case | Outcome |\n| --- | --- | --- | --- |\n"
    for row in rows:
        case = row["test"].partition("[")[2].rstrip("]")
        said = [outcome(row), row.get("detail", ""), f"{row.get('at', '')} {row.get('commit', '')}".strip()]
        text += f"| {row['kind']} | {row['what']} | {case} | {', '.join(word for word in said if word)} |\n"
    return text + NOT_COVERED


def outcome(row: dict[str, Any]) -> str:
    """In a word. A fault of many points that did not come to its end survived in part."""
    return OUTCOMES["part" if row.get("outcome") == "passed" and row.get("rest") else row.get("outcome")]


def seen_with(rows: Sequence[dict[str, Any]]) -> str:
    """From when and which state of the code the outcomes are."""
    dates = sorted({row["at"] for row in rows if "at" in row})
    when = " to ".join(dict.fromkeys(dates[:1] + dates[-1:]))
    commits = Counter(row["commit"] for row in rows if row.get("commit"))
    if len(commits) == 1:
        return f"All with the code of commit {next(iter(commits))}, {when}.\n"
    each = ", ".join(f"{number} with {commit}" for commit, number in commits.most_common())
    return f"Seen {when}, with different states of the code: {each}.\n"


def write_page() -> None:
    """Write the document from the results that are there."""
    found = lines()
    if any("outcome" in line for line in found):
        PAGE.write_text(page(found))
        print(f"{PAGE.relative_to(ROOT)} written")


def main() -> int:
    if sys.argv[1:] == ["--page"]:
        write_page()
        return 0
    words = [word for word in sys.argv[1:] if word not in ("--resume", "--engine")]
    engine = "--engine" in sys.argv[1:]
    if not sys.argv[1:]:
        RESULTS.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "AERIE_FAULTS": "engine" if engine else "all",
        "AERIE_FAULTS_WORDS": json.dumps(words),
        "AERIE_FAULTS_RESUME": "yes" if "--resume" in sys.argv[1:] else "",
    }
    scenario = "faults_engine" if engine else "faults"
    done = subprocess.run(
        [str(BIN / "molecule"), "test", "--scenario-name", scenario], cwd=ROOT, env=environment, check=False
    )
    write_page()
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
