"""A kill at any point leaves each file wholly old or wholly new, and the next run, whatever it wants, finishes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie.patch.store import DIRECTORY
from patch_made import MODEL, PROBE, TEXT, entry, make_tree, patch, snapshot

OTHER = "sglang/srt/models/llama.py"
A = [entry(probes={PROBE: "def seen(aux):\n    pass\n"}), entry(name="other", file=OTHER)]
B = [entry(code="aerie_probe.other(aux)", probes={PROBE: "def other(aux):\n    return aux\n"})]
WRITES = (
    "os.rename",
    "os.remove",
    "os.link",
    "os.mkdir",
    "os.rmdir",
    "os.chmod",
    "os.chown",
    "os.utime",
    "os.setxattr",
)
WATCHED = (MODEL, OTHER, PROBE)


class Killed(BaseException):
    """Not an Exception: nothing may clean up after it."""


class _Killer:
    """Raises before the n-th change of a file system under a directory, and before all that follow."""

    def __init__(self) -> None:
        self.left = -1
        self.site = ""
        self.seen = 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.site:
            return
        wrote = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if not (wrote or event in WRITES) or self.site not in str(arguments[0]):
            return
        self.seen += 1
        if self.left == 0:
            raise Killed
        self.left -= 1


KILLER = _Killer()
sys.addaudithook(KILLER)


@contextmanager
def killed_after(site: Path, changes: int) -> Iterator[None]:
    KILLER.left, KILLER.site, KILLER.seen = changes, str(site), 0
    try:
        yield
    finally:
        KILLER.site = ""


def contents(site: Path) -> dict[str, bytes | None]:
    return {path: (site / path).read_bytes() if (site / path).exists() else None for path in WATCHED}


@pytest.mark.parametrize("record", [True, False], ids=["RECORD", "first seen"])
@pytest.mark.parametrize(("before", "wanted"), [([], A), (A, B), (A, [])], ids=["apply", "change", "revert"])
def test_a_kill_at_any_point(
    tmp_path: Path, before: list[dict[str, Any]], wanted: list[dict[str, Any]], record: bool
) -> None:
    start = make_tree(tmp_path / "start", {OTHER: TEXT + b"# llama\n"}, record=record)
    pristine = snapshot(start)
    patch(start, *before)
    old = contents(start)
    goal = shutil.copytree(start, tmp_path / "goal")
    with killed_after(goal, -1):
        patch(goal, *wanted)
    new = contents(goal)
    points = KILLER.seen
    assert points > 15
    for point in range(0, points, 1 if record else 3):
        site = shutil.copytree(start, tmp_path / f"at-{point}")
        with pytest.raises(Killed), killed_after(site, point):
            patch(site, *wanted)
        for path, data in contents(site).items():
            assert data in (old[path], new[path]), f"{path} at {point}"
        if point % 2:
            patch(site, *wanted)
            assert contents(site) == new, point
        assert patch(site).tree == "pristine"
        assert snapshot(site) == pristine, point
        assert not (site / DIRECTORY).exists()
        shutil.rmtree(site)
