"""Run the lines of ci/pipeline.example.yml as a pipeline would, and check the JSON that they leave.

    python pipeline.py IDENT INVENTORY EXPECTED_RC [further words for ansible-runner]

Only what a pipeline's own machine would bring is set here: the identifier and the inventory.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def main(ident: str, inventory: str, expected: int, *further: str) -> None:
    job = yaml.safe_load((ROOT / "ci" / "pipeline.example.yml").read_text())["deploy"]
    relative = os.path.relpath(inventory, ROOT)  # the pipeline's own line puts $PWD before it
    environment = {**os.environ, "AERIE_INVENTORY": relative, "AERIE_IDENT": ident}
    shutil.rmtree(
        ROOT / "ci" / "runner" / "artifacts" / ident, ignore_errors=True
    )  # of an earlier verify here
    (ROOT / "reports").mkdir(exist_ok=True)
    (line,) = job["script"]
    run = subprocess.run(["sh", "-c", " ".join([line, *further])], cwd=ROOT, env=environment, check=False)
    if (ROOT / "ci" / "runner" / "env" / "cmdline").exists():
        sys.exit("ansible-runner kept the words of this run for the next one")
    if run.returncode != expected:
        sys.exit(f"ansible-runner exited {run.returncode}, expected {expected}")
    (line,) = job["after_script"]
    subprocess.run(["sh", "-c", line], cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE)
    told = json.loads((ROOT / "reports" / "deploy.json").read_text())
    if told["rc"] != expected:
        sys.exit(f"the summary says rc {told['rc']}, expected {expected}")
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
