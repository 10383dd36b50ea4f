"""Every molecule scenario, one test each: `molecule test` on real systemd hosts, with signs of life.

All that a scenario prints goes to `reports/molecule/<scenario>.log`; its end is shown when it fails.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LOGS = ROOT / "reports" / "molecule"
# A scenario takes minutes; one that takes this long hangs, and CI should say which.
LIMIT_SECONDS = 30 * 60
SILENCE_SECONDS = 30
STEP = re.compile(r"(PLAY|TASK|RUNNING HANDLER) \[.*\]|\S+ ➜ .*: Executing")
COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

SCENARIOS = sorted(path.parent.name for path in ROOT.glob("molecule/*/molecule.yml"))


def last_step(log: Path) -> str:
    """The play, task or molecule action that the log ends in, or its last line."""
    lines = [
        line.strip() for line in COLOUR.sub("", log.read_text(errors="replace")).splitlines() if line.strip()
    ]
    steps = [line[found.start() :].rstrip("* ") for line in lines if (found := STEP.search(line))]
    return (steps or lines or ["nothing yet"])[-1][:120]


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a scenario and everything it started; kill what is left after a minute."""
    for sign, patience in ((signal.SIGINT, 60), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            return
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            continue


def molecule(action: str, scenario: str, log: Path, tell: Callable[[str], None]) -> int | None:
    """Run one molecule action into `log`, telling twice a minute what it is at. None: out of time."""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
    started = time.monotonic()
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(BIN / "molecule"), action, "--scenario-name", scenario],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while (elapsed := time.monotonic() - started) < LIMIT_SECONDS:
                try:
                    return process.wait(timeout=SILENCE_SECONDS)
                except subprocess.TimeoutExpired:
                    tell(f"  {scenario}, {elapsed + SILENCE_SECONDS:.0f} s: {last_step(log)}")
            return None
        finally:
            if process.poll() is None:
                end_group(process)


@pytest.mark.skipif(os.geteuid() != 0, reason="test hosts need root")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    def tell(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{scenario}.log"
    log.write_bytes(b"")
    tell(f"\nmolecule {scenario} starts; all of it in {log.relative_to(ROOT)}")
    status: int | None = None
    try:
        status = molecule("test", scenario, log, tell)
    finally:
        if status is None:
            # Interrupted or out of time: molecule did not get to its own destroy.
            molecule("destroy", scenario, log, tell)
    if status != 0:
        end = "\n".join(COLOUR.sub("", log.read_text(errors="replace")).splitlines()[-80:])
        what = f"exited {status}" if status is not None else f"was stopped after {LIMIT_SECONDS} s"
        pytest.fail(f"molecule test --scenario-name {scenario} {what}\n{end}", pytrace=False)
