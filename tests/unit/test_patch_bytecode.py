"""Byte-code of another text never runs, not of equal size and not in the same second. With real Python processes."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest
from patch_made import PROBE, entry, make_tree, patch, snapshot

FILE = "sglang/srt/says.py"
# The patch replaces `return 1111` by a line of the same length.
TEXT = b"def says():\n    return 1111\n"
REPLACED = entry(
    file=FILE,
    anchor={"function": "says", "statement": "return 1111"},
    where="replace",
    code="return 2222",
    probes={PROBE: "a = 1\n"},
)
Mode = py_compile.PycInvalidationMode


def says(site: Path, *, writes: bool = True) -> str:
    """What a Python process says that imports from the tree as people do."""
    done = subprocess.run(
        [sys.executable, "-c", "import sglang.srt.says as s; print(s.says())"],
        env={"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "" if writes else "1"},
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    return done.stdout.strip()


def cached(site: Path) -> list[Path]:
    return sorted((site / FILE).parent.glob("__pycache__/says.*.pyc"))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "site", {FILE: TEXT, "sglang/srt/__init__.py": b""})


@pytest.mark.parametrize("writes", [True, False])
def test_same_size_and_same_second(site: Path, writes: bool) -> None:
    for _ in range(2):
        assert says(site) == "1111"
        assert len(cached(site)) == 1
        assert patch(site, REPLACED).changed
        assert (site / FILE).stat().st_size == len(TEXT)
        assert says(site, writes=writes) == "2222"
        assert patch(site).tree == "pristine"
        assert says(site, writes=writes) == "1111"


def test_a_time_in_the_same_second_is_not_taken(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible.module_utils.aerie.patch import replace as patch_replace

    now = (site / FILE).stat().st_mtime_ns
    monkeypatch.setattr(patch_replace.time, "time_ns", lambda: now)
    assert says(site) == "1111"
    patch(site, REPLACED)
    assert int((site / FILE).stat().st_mtime) != now // 10**9
    assert says(site) == "2222"


def test_byte_code_that_comes_while_a_file_is_replaced(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process imports the old text between the first removal of its byte-code and the new file."""
    from ansible.module_utils.aerie.patch import bytecode as patch_bytecode

    real = patch_bytecode.discard
    calls = []

    def slow(source: Path) -> None:
        real(source)
        calls.append(source)
        if source.name == "says.py" and calls.count(source) == 1:
            assert says(site) == "1111"
            assert cached(site)

    monkeypatch.setattr(patch_bytecode, "discard", slow)
    patch(site, REPLACED)
    assert says(site) == "2222"


@pytest.mark.parametrize("mode", [Mode.UNCHECKED_HASH, Mode.CHECKED_HASH, Mode.TIMESTAMP])
def test_byte_code_of_any_kind_goes_and_comes_back(site: Path, mode: Mode) -> None:
    py_compile.compile(str(site / FILE), invalidation_mode=mode, doraise=True)
    py_compile.compile(str(site / FILE), invalidation_mode=mode, doraise=True, optimize=1)
    assert says(site) == "1111"
    before = snapshot(site)
    patch(site, REPLACED)
    assert cached(site) == []
    assert says(site) == "2222"
    patch(site)
    after = snapshot(site)
    assert {path: data for path, (data, _, _) in after.items()} == {
        p: data for p, (data, _, _) in before.items()
    }
    assert says(site, writes=False) == "1111"


def test_byte_code_that_was_stale_already_does_not_come_back(site: Path) -> None:
    py_compile.compile(str(site / FILE), doraise=True)
    os.utime(site / FILE, (1, 1))
    patch(site, REPLACED)
    patch(site)
    assert cached(site) == []
    assert (site / FILE).stat().st_mtime == 1


def test_a_probes_byte_code_goes_with_it(site: Path) -> None:
    patch(site, REPLACED)
    py_compile.compile(str(site / PROBE), doraise=True)
    patch(site)
    assert not list(site.rglob("aerie_probe*"))
    assert not list(site.rglob("__pycache__"))
