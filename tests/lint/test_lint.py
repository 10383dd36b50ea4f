"""The linters, one test each: `make test` is one run with one verdict, `make lint` runs these alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from linters import LINTERS, ROOT, Linter


@pytest.mark.parametrize("name", LINTERS)
def test_linter(name: str, linter: Linter) -> None:
    status, output = linter.result()
    if status != 0:
        pytest.fail(f"{' '.join(linter.command)} exited {status}\n{output}", pytrace=False)


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
        status, output = Linter([shell, "-n", str(path)]).result()
        assert status == 0, output
