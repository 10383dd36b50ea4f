"""Committed text works anywhere: it names no registry's host and no path of its author's machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Joined here, so that this file does not match itself.
HOSTS = [
    ("pypi", "org"),
    ("files", "pythonhosted", "org"),
    ("test", "pypi", "org"),
    ("deb", "debian", "org"),
    ("security", "debian", "org"),
    ("archive", "ubuntu", "com"),
    ("registry", "npmjs", "org"),
    ("galaxy", "ansible", "com"),
]
PATHS = [
    ("work", "main"),
    ("work", "shared"),
    ("work", ".library"),
    ("root", ".pyenv"),
    ("tmp", "aerie"),
    ("tmp", "eng"),
    ("opt", "pypi"),
]

FORBIDDEN = re.compile(
    "|".join(
        [re.escape(".".join(parts)) for parts in HOSTS]
        + [re.escape("/" + "/".join(parts)) + r"(?![\w-])" for parts in PATHS]
    )
)


def committed_files() -> list[Path]:
    """What git tracks and still exists; a link's text is its target, so links are left out."""
    listing = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    files = [ROOT / name for name in listing.decode().split("\0") if name]
    return [path for path in files if path.is_file() and not path.is_symlink()]


def offences(text: str) -> list[str]:
    """Every line with a forbidden name, as "line: text"."""
    return [
        f"{number}: {line.strip()[:160]}"
        for number, line in enumerate(text.splitlines(), 1)
        if FORBIDDEN.search(line)
    ]


@pytest.mark.parametrize("parts", HOSTS)
def test_a_host_is_recognised(parts: tuple[str, ...]) -> None:
    assert offences("index: https://" + ".".join(parts) + "/simple")


@pytest.mark.parametrize("parts", PATHS)
def test_a_path_is_recognised(parts: tuple[str, ...]) -> None:
    assert offences("made in /" + "/".join(parts) + "/x")


@pytest.mark.parametrize("text", ["/tmp/english", "/work/" + "maintenance", "pypi.tsv", "a pypi mirror"])
def test_lookalikes_are_left_alone(text: str) -> None:
    assert not offences(text)


def test_no_committed_file_names_a_registry_host_or_a_machine_path() -> None:
    files = committed_files()
    assert files
    found = {
        str(path.relative_to(ROOT)): lines
        for path in files
        if (lines := offences(path.read_bytes().decode(errors="replace")))
    }
    assert not found
