"""Aerie under each ansible-core that it supports: the tests of its plugins, and one trip down the whole road.

`make matrix` runs all of them. `make test`, whose own run is on one of them already, adds the oldest; what it left
out is in its summary as skipped. Each has an environment of its own under `.cache/matrix`, from a hash-locked list.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from ansible.release import __version__ as running

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "reports" / "matrix"
LIMIT_S = 1200
# What runs in the controller's process, beside the modules themselves: plugins, inventories, the pipeline's summary.
PLUGIN_TESTS = ("test_action_watched.py", "test_inventories.py", "test_ci_summary.py", "test_documents.py")
# Molecule's own steps; `check` and `idempotence` are in the scenario's ordinary run.
STEPS = ("destroy", "create", "converge", "destroy")
SCENARIO = "production"


@dataclass(frozen=True)
class Core:
    """An ansible-core, the minor of the Python that runs it here, and its locked list."""

    core: str
    python: str
    lock: str

    @property
    def venv(self) -> Path:
        return ROOT / ".cache" / "matrix" / self.core

    def python_path(self) -> str:
        """The interpreter, or '' when this machine has none."""
        found = subprocess.run(
            [str(ROOT / "requirements" / "find-python"), self.python.partition(".")[2]],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False,
        )  # fmt: skip
        return found.stdout.strip()


CORES = (
    Core("2.19", "3.11", "controller-3.11.txt"),
    Core("2.20", "3.12", "controller-3.12-core-2.20.txt"),
    Core("2.21", "3.13", "controller-3.13.txt"),
)
WANTED = os.environ.get("AERIE_MATRIX", "all")


def run(log: Path, *command: str | Path, path: Path | None = None) -> None:
    """Run a command, all that it says into ``log``; fails the test with its end."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if path is not None:
        environment["PATH"] = f"{path}{os.pathsep}{os.environ['PATH']}"
    with log.open("ab") as output:
        done = subprocess.run(
            [str(word) for word in command], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    if done.returncode != 0:
        end = "\n".join(log.read_text(errors="replace").splitlines()[-60:])
        pytest.fail(f"exit {done.returncode}: {' '.join(map(str, command))}\n{end}", pytrace=False)


def make_environment(core: Core, python: str, log: Path) -> None:
    """The environment of the list, made again when the list has changed."""
    lock = ROOT / "requirements" / core.lock
    record = core.venv / ".lock-sha256"
    want = f"{python} {hashlib.sha256(lock.read_bytes()).hexdigest()}"
    if record.is_file() and record.read_text() == want:
        return
    run(log, python, "-m", "venv", "--clear", core.venv)
    pip: list[str | Path] = [
        core.venv / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    run(log, *pip, "--no-input", "--only-binary", ":all:", "--require-hashes", "-r", lock)
    record.write_text(want)


@pytest.mark.skipif(os.geteuid() != 0, reason="test hosts need root")
@pytest.mark.parametrize("core", CORES, ids=[one.core for one in CORES])
def test_road(core: Core, capsys: pytest.CaptureFixture[str]) -> None:
    if WANTED == "oldest" and core != CORES[0]:
        pytest.skip(f"ansible-core {core.core} is left to `make matrix`")
    if WANTED == "oldest" and running.startswith(f"{core.core}."):
        pytest.skip(f"ansible-core {running} is what all the other tests run on")
    python = core.python_path()
    if not python:
        pytest.skip(f"this machine has no Python {core.python} for ansible-core {core.core}")

    tell: Callable[[str], None] = lambda text: print(text, flush=True)  # noqa: E731
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{core.core}.log"
    log.write_bytes(b"")
    with capsys.disabled():
        tell(f"\nansible-core {core.core} on Python {core.python}; all of it in {log.relative_to(ROOT)}")
        make_environment(core, python, log)
        bin_dir = core.venv / "bin"
        tell("  its environment is there; the tests of the plugins")
        unit = [ROOT / "tests" / "unit" / name for name in PLUGIN_TESTS]
        run(log, bin_dir / "python", "-m", "pytest", "-p", "no:cacheprovider", *unit, path=bin_dir)
        try:
            for step in STEPS:
                tell(f"  {SCENARIO}: {step}")
                run(log, bin_dir / "molecule", step, "--scenario-name", SCENARIO, path=bin_dir)
        finally:
            subprocess.run(
                [sys.executable, ROOT / "tests" / "hosts" / "hosts", "down", "road"],
                cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
            )  # fmt: skip
    said = log.read_text(errors="replace")
    assert "failed=0" in said
    assert "accept length" in said
