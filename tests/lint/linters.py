"""The linters and how one is run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LIMIT_S = 900

# Beside module_utils, what passes too. Apart from the faults, whose conftest has the name of this directory's.
TYPED = (
    *("ci/summary.py", "docs", "plugins/doc_fragments", "plugins/filter"),
    *("tests/callbacks", "tests/hosts", "tests/lint", "tests/matrix", "tests/nvml", "tests/scenarios"),
    "tests/server_double",
)

LINTERS = {
    "ruff check": ["ruff", "check", "--no-cache", "--output-format=concise", "."],
    "ruff format": ["ruff", "format", "--check", "--no-cache", "--output-format=concise", "."],
    "mypy": ["mypy"],
    "mypy faults": ["mypy", "tests/faults"],
    "mypy others": ["mypy", *TYPED],
    "yamllint": ["yamllint", "--strict", "."],
    "ansible-lint": ["ansible-lint", "--nocolor", "--format=pep8"],
}


class Linter:
    """A command at the repository's root, with the environment's tools first on PATH; it runs from here on."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        own = BIN / command[0]
        # Its output goes to a file: nobody reads a pipe while other tests run.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(
            [str(own) if own.exists() else command[0], *command[1:]],
            cwd=ROOT,
            env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def result(self) -> tuple[int, str]:
        """Exit status and output, once it has ended. Raises subprocess.TimeoutExpired after LIMIT_S."""
        status = self.process.wait(timeout=LIMIT_S)
        self._output.seek(0)
        return status, self._output.read().decode(errors="replace")
