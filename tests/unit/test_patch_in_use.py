"""A tree that a running server imports from is refused."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.patch import site as patch_site
from patch_made import entry, make_tree, patch, snapshot

SLEEPER = "import time; print('up', flush=True); time.sleep(60)\n"


@contextmanager
def process(command: list[str], cwd: Path, **environment: str) -> Iterator[int]:
    """A process that sleeps, once it has said that it is up."""
    child = subprocess.Popen(
        command, cwd=cwd, env={"PATH": "/usr/bin:/bin", **environment}, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        yield child.pid
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "site", {"sglang/launch_server.py": SLEEPER.encode()})


def refused(site: Path) -> AerieError:
    before = snapshot(site)
    with pytest.raises(AerieError) as caught:
        patch(site, entry(), guard=lambda: patch_site.check_unused(site))
    assert snapshot(site) == before
    return caught.value


LAUNCH = [sys.executable, "-m", "sglang.launch_server", "--port", "30000"]


def test_by_import_path(site: Path) -> None:
    with process(LAUNCH, Path("/"), PYTHONPATH=f"/elsewhere:{site}", PYTHONDONTWRITEBYTECODE="1") as pid:
        error = refused(site)
    assert error.kind.code == "tree-in-use"
    assert f"pid {pid}" in error.evidence[0]
    assert "sglang.launch_server" in error.evidence[0]
    assert f"kill {pid}" in error.next or "systemctl stop" in error.next
    assert patch(site, entry(), guard=lambda: patch_site.check_unused(site)).changed


def test_by_working_directory(site: Path) -> None:
    with process(LAUNCH, site, PYTHONDONTWRITEBYTECODE="1"):
        assert refused(site).kind.code == "tree-in-use"


@pytest.mark.parametrize("form", ["site-packages", "pth", "finder"])
def test_by_the_environment_of_its_python(tmp_path: Path, form: str) -> None:
    packages = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    place = packages if form == "site-packages" else tmp_path / "checkout" / "python"
    site = make_tree(place)
    packages.mkdir(parents=True, exist_ok=True)
    if form == "pth":
        (packages / "__editable__.sglang-0.5.9.pth").write_text(f"{site}\n")
    if form == "finder":
        finder = packages / "__editable___sglang_0_5_9_finder.py"
        finder.write_text(f"MAPPING: dict[str, str] = {{'sglang': '{site}/sglang'}}\n")
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho up\nexec -a "$0" sleep 60\n')
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    # argv[0] is the environment's python, as a virtual environment's is; what runs is this one
    command = ["bash", "-c", f"exec -a {python} {sys.executable} {tmp_path}/sleeper.py sglang.launch_server"]
    with process(command, Path("/")):
        assert refused(site).kind.code == "tree-in-use"


def test_other_processes_do_not_matter(site: Path) -> None:
    (site / "sleeper.py").write_text(SLEEPER)
    with process([sys.executable, str(site / "sleeper.py")], Path("/"), PYTHONPATH=str(site)):
        assert not list(patch_site.servers(site))
    with process(LAUNCH, Path("/"), PYTHONPATH=str(site), PYTHONDONTWRITEBYTECODE="1"):
        other = make_tree(site.parent / "other")
        assert not list(patch_site.servers(other))


def test_nothing_to_change_needs_no_look(site: Path) -> None:
    def fails() -> None:
        raise AssertionError("asked")

    began = time.monotonic()
    assert patch(site, guard=fails).changed is False
    assert time.monotonic() - began < 5
