"""The linters, one test each: `make test` is one run with one verdict, `make lint` runs these alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

LINTERS = {
    "ruff check": ["ruff", "check", "--no-cache", "--output-format=concise", "."],
    "ruff format": ["ruff", "format", "--check", "--no-cache", "--output-format=concise", "."],
    "mypy": ["mypy"],
    "yamllint": ["yamllint", "--strict", "."],
    "ansible-lint": ["ansible-lint", "--nocolor", "--format=pep8"],
}


def run(command: list[str]) -> tuple[int, str]:
    """Exit status and output of `command`, run at the root with the environment's tools first on PATH."""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}
    result = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    return result.returncode, result.stdout


@pytest.mark.parametrize("name", LINTERS)
def test_linter(name: str) -> None:
    tool, *arguments = LINTERS[name]
    status, output = run([str(BIN / tool), *arguments])
    if status != 0:
        pytest.fail(f"{' '.join(LINTERS[name])} exited {status}\n{output}", pytrace=False)


def shell_scripts() -> list[Path]:
    """Every committed file that a shell runs, told by its first line."""
    listing = subprocess.run(
        [
            "git",
            "-c",
            f"safe.directory={ROOT}",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    scripts = []
    for name in filter(None, listing.decode().split("\0")):
        path = ROOT / name
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                first = file.readline(64)
            if first.startswith(b"#!") and first.rstrip().endswith((b"/sh", b"bash")):
                scripts.append(path)
    return scripts


def test_shell_scripts_parse() -> None:
    scripts = shell_scripts()
    assert scripts
    for path in scripts:
        shell = "bash" if b"bash" in path.read_bytes().split(b"\n", 1)[0] else "sh"
        status, output = run([shell, "-n", str(path)])
        assert status == 0, output
