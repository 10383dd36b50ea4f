"""requirements/system-packages installs what is missing and nothing else, and says so when it may not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "requirements" / "system-packages"


def executable(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose test hosts need `one` and `two`, on a machine where only `one` is installed."""
    (tmp_path / "requirements").mkdir()
    shutil.copy(SCRIPT, tmp_path / "requirements" / "system-packages")
    executable(tmp_path / "tests" / "hosts" / "hosts", 'echo "one two"\n')
    # dpkg-query also knows packages that were removed but not purged: those are not installed.
    executable(
        tmp_path / "bin" / "dpkg-query",
        "for last; do :; done\ncase $last in one) printf installed ;; two) printf config-files ;; esac\n",
    )
    executable(tmp_path / "bin" / "apt-get", 'echo "apt-get $*"\n')
    executable(tmp_path / "bin" / "id", "echo 0\n")
    return tmp_path


def run(checkout: Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", str(checkout / "requirements" / "system-packages")],
        env={"PATH": path or f"{checkout / 'bin'}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_root_gets_what_is_missing(checkout: Path) -> None:
    result = run(checkout)
    assert result.returncode == 0, result.stderr
    assert "apt-get install -y -q --no-install-recommends two\n" in result.stdout


def test_nothing_is_said_or_done_when_all_are_there(checkout: Path) -> None:
    executable(checkout / "bin" / "dpkg-query", "printf installed\n")
    result = run(checkout)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_others_are_told_the_command(checkout: Path) -> None:
    executable(checkout / "bin" / "id", "echo 1000\n")
    result = run(checkout)
    assert (result.returncode, result.stdout) == (1, "")
    assert "  apt-get install --no-install-recommends two\n" in result.stderr


def test_a_failing_hosts_tool_is_not_taken_for_nothing_to_install(checkout: Path) -> None:
    executable(checkout / "tests" / "hosts" / "hosts", "echo broken >&2\nexit 3\n")
    assert run(checkout).returncode == 3


def test_a_machine_without_dpkg_gets_the_list(checkout: Path) -> None:
    tools = checkout / "no-dpkg"
    tools.mkdir()
    for name in ("sed", "dirname"):
        (tools / name).symlink_to(shutil.which(name, path="/usr/bin:/bin") or name)
    result = run(checkout, str(tools))
    assert result.returncode == 1
    assert "one two" in result.stderr
