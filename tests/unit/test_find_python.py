"""requirements/find-python runs every candidate and takes the newest that works."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "requirements" / "find-python"

BROKEN = {
    # The two commonest failures: a pyenv shim of an inactive version, Debian without python3-venv.
    "shim": 'echo "pyenv: ${0##*/}: command not found" >&2\nexit 127\n',
    "no ensurepip": "echo \"ModuleNotFoundError: No module named 'ensurepip'\" >&2\nexit 1\n",
}


def fake_python(path: Path, version: str | None = None, broken: str | None = None) -> Path:
    """Write an executable that answers the probe as a Python of `version` does, or fails as `broken` says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + (BROKEN[broken] if broken else f'echo "{version} $0"\n'))
    path.chmod(0o755)
    return path


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    """A directory whose `bin` is PATH; the script's own tools are links, and no real Python is in it."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sed", "tail", "sort"):
        source = next(Path(folder, name) for folder in ("/usr/bin", "/bin") if Path(folder, name).exists())
        (tools / name).symlink_to(source)
    return tmp_path


def find(sandbox: Path) -> subprocess.CompletedProcess[str]:
    """Run the script on `sandbox`, the machine's own directories replaced by its empty ones."""
    script = sandbox / "find-python"
    text = SCRIPT.read_text()
    text = text.replace("/usr/local", str(sandbox / "local")).replace(" /usr/bin;", ";")
    script.write_text(text)
    environment = {"PATH": str(sandbox / "bin"), "HOME": str(sandbox), "PYENV_ROOT": str(sandbox / "pyenv")}
    return subprocess.run(
        ["/bin/sh", str(script)], env=environment, capture_output=True, text=True, timeout=30, check=False
    )


def test_the_newest_on_path_wins(sandbox: Path) -> None:
    for minor in ("3.11", "3.12", "3.13"):
        fake_python(sandbox / "bin" / f"python{minor}", minor)
    result = find(sandbox)
    assert (result.returncode, result.stdout) == (0, f"{sandbox}/bin/python3.13\n")


@pytest.mark.parametrize("broken", BROKEN)
def test_a_newer_one_that_does_not_work_is_passed_over(sandbox: Path, broken: str) -> None:
    fake_python(sandbox / "bin" / "python3.13", broken=broken)
    fake_python(sandbox / "bin" / "python3.11", "3.11")
    result = find(sandbox)
    assert (result.returncode, result.stdout) == (0, f"{sandbox}/bin/python3.11\n")


def test_pyenv_versions_are_found_behind_a_failing_shim(sandbox: Path) -> None:
    fake_python(sandbox / "bin" / "python3.12", broken="shim")
    wanted = fake_python(sandbox / "pyenv" / "versions" / "3.12.7" / "bin" / "python3", "3.12")
    assert find(sandbox).stdout == f"{wanted}\n"


def test_a_prefix_under_usr_local_is_found(sandbox: Path) -> None:
    wanted = fake_python(sandbox / "local" / "python" / "bin" / "python3.12", "3.12")
    assert find(sandbox).stdout == f"{wanted}\n"


def test_plain_python3_counts_when_its_version_fits(sandbox: Path) -> None:
    fake_python(sandbox / "bin" / "python3", "3.12")
    assert find(sandbox).stdout == f"{sandbox}/bin/python3\n"


@pytest.mark.parametrize("version", ["3.10", "3.14", "2.7"])
def test_other_versions_are_not_taken(sandbox: Path, version: str) -> None:
    fake_python(sandbox / "bin" / "python3", version)
    assert find(sandbox).returncode == 1


def test_a_name_that_lies_about_its_version_is_not_taken(sandbox: Path) -> None:
    fake_python(sandbox / "bin" / "python3.13", "3.9")
    assert find(sandbox).returncode == 1


def test_without_any_it_says_what_was_found_and_what_to_install(sandbox: Path) -> None:
    fake_python(sandbox / "bin" / "python3.11", broken="no ensurepip")
    result = find(sandbox)
    assert (result.returncode, result.stdout) == (1, "")
    assert f"{sandbox}/bin/python3.11: ModuleNotFoundError: No module named 'ensurepip'" in result.stderr
    assert "apt-get install python3 python3-venv" in result.stderr


def test_the_real_probe_accepts_a_real_python() -> None:
    """The fakes only echo: this one runs the probe itself, on the Python that made the environment."""
    environment = dict(os.environ)
    result = subprocess.run(
        [str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    check = (
        "import ensurepip, sys, venv; print(sys.version_info[:2] >= (3, 11), sys.prefix == sys.base_prefix)"
    )
    answer = subprocess.run(
        [result.stdout.strip(), "-c", check], capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout == "True True\n"
