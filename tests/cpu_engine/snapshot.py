#!/usr/bin/env python3
"""Make the test hosts' snapshot ``engine``: a host with the CPU engine's release installed and the pair made.

    python snapshot.py

Scenarios boot from it, so that only the ones that test the installation pay for an installation. It is made by the
project's own role and playbook (prepare.yml), and made again when anything that goes into it has changed. A no-op
in under a second otherwise.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HOSTS = ROOT / "tests" / "hosts" / "hosts"
WHEELS = ROOT / ".cache" / "wheelhouse" / "cpu-engine"
STAMP = ROOT / ".cache" / "hosts" / "engine.stamp"
# What the pair must be accepted at (predict.py), for the tests of every scenario.
TABLE = ROOT / ".cache" / "pair" / "pair.json"
BUILDER = "engine-maker"
NAME = "engine"
# Everything that decides what is on the snapshot.
INGREDIENTS = (
    "roles/sglang_install/[dftv]*/**/*",  # defaults, files, tasks, vars
    "library/sglang_release.py",
    "module_utils/aerie/release/*.py",
    "tests/cpu_engine/prepare.yml",
    "tests/cpu_engine/pair.py",
    "tests/cpu_engine/predict.py",
    "tests/cpu_engine/clockwork/*.py",
    ".cache/wheelhouse/cpu-engine/lock.txt",
)


def fingerprint() -> str:
    """sha256 over the ingredients' names and bytes."""
    digest = hashlib.sha256()
    for pattern in INGREDIENTS:
        for path in sorted(p for p in ROOT.glob(pattern) if p.is_file()):
            digest.update(f"{path.relative_to(ROOT)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def run(*command: str | Path) -> None:
    """Run a step with its output shown; SystemExit when it fails."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    done = subprocess.run([str(word) for word in command], cwd=ROOT, env=environment, check=False)
    if done.returncode != 0:
        sys.exit(f"snapshot: {command[0]} ended with {done.returncode}; its output above says why")


def present() -> bool:
    """Whether the snapshot is there at all."""
    listing = subprocess.run([str(HOSTS), "snapshots"], capture_output=True, text=True, check=True).stdout
    return any(line.split()[:1] == [NAME] for line in listing.splitlines())


def main() -> None:
    run(sys.executable, HERE / "wheelhouse.py")
    wanted = fingerprint()
    if STAMP.is_file() and STAMP.read_text() == wanted and present():
        return
    STAMP.unlink(missing_ok=True)
    run(HOSTS, "down", BUILDER)
    binds = ("--bind", f"{WHEELS}:/srv/wheelhouse:ro", "--bind", f"{HERE}:/srv/clockwork:ro")
    run(HOSTS, "up", BUILDER, *binds)
    inventories = ["-i", "inventories/local", "-i", HERE / "snapshot_inventory.yml"]
    run("ansible-playbook", *inventories, HERE / "prepare.yml", "--limit", BUILDER)
    table = subprocess.run(
        [str(HOSTS), "exec", BUILDER, "cat", "/srv/models/pair.json"], stdout=subprocess.PIPE, check=True
    ).stdout
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    TABLE.write_bytes(table)
    run(HOSTS, "snapshot", BUILDER, NAME, "--replace")
    STAMP.write_text(wanted)


if __name__ == "__main__":
    main()
