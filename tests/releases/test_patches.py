"""Every source patch in real releases: as docs/patch-releases.md says, and nothing is left behind.

Eight releases are part of `make test`; the others have the marker `every_release` (`make releases`).
"""

from __future__ import annotations

import ast
from pathlib import Path

import fetch
import patch_table
import pytest

from aerie.patch import tree as patch_tree
from aerie.patch.compose import APPLIED

SPREAD = ("0.4.4.post2", "0.4.10.post2", "0.5.3.post3", "0.5.9", "0.5.12", "0.5.14", "0.5.17", "0.5.23")
MODES = (("fixes", "debug"), ("fixes", "profile"))


def releases() -> list[object]:
    """Every release of wheels.txt; those outside SPREAD are marked."""
    return [
        release if release in SPREAD else pytest.param(release, marks=pytest.mark.every_release)
        for release in fetch.known()
    ]


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, str]]:
    return patch_table.committed()


def contents(site: Path) -> dict[str, bytes]:
    return {str(path.relative_to(site)): path.read_bytes() for path in site.rglob("*") if path.is_file()}


def times(site: Path) -> dict[str, int]:
    return {str(path.relative_to(site)): path.stat().st_mtime_ns for path in (site / "sglang").rglob("*.py")}


@pytest.mark.parametrize("release", releases())
def test_every_entry_in_a_release(release: str, table, tmp_path: Path) -> None:
    entries = patch_table.entries()
    patch_table.copied(fetch.tree(release), tmp_path, entries)
    published = contents(tmp_path)
    for mode in MODES:
        wanted = patch_table.entries(mode)
        result = patch_tree.apply(tmp_path, release, wanted)
        found = patch_table.states_of(result)
        assert {entry.name: found[entry.name] for entry in wanted} == {
            entry.name: table[release][entry.name] for entry in wanted
        }, "docs/patch-releases.md says otherwise; python tests/releases/patch_table.py --write"
        assert result.proof == "RECORD"
        check(tmp_path, wanted, found)
        before = times(tmp_path)
        assert not patch_tree.apply(tmp_path, release, wanted).changed
        assert times(tmp_path) == before
    assert patch_tree.apply(tmp_path, release, []).changed
    assert contents(tmp_path) == published


def check(site: Path, wanted, found: dict[str, str]) -> None:
    """Each file parses and holds, once for each applied entry, a call of its probe or its code."""
    for name in {entry.file for entry in wanted if found[entry.name] == APPLIED}:
        text = (site / name).read_text(encoding="utf-8")
        ast.parse(text)
        for entry in wanted:
            if entry.file == name and found[entry.name] == APPLIED:
                assert text.count(entry.code.strip().splitlines()[-1].strip()) == 1, entry.name


def test_the_page_has_every_entry_and_every_release(table) -> None:
    assert patch_table.page(table, SPREAD) == patch_table.PAGE.read_text(encoding="utf-8")


@pytest.mark.every_release
def test_no_release_is_missing() -> None:
    known = list(fetch.known())
    offered = fetch.published()
    assert offered, "pip says nothing about sglang: python -m pip index versions sglang"
    newer = offered[: offered.index(known[-1])]
    assert not newer, f"python tests/releases/fetch.py --add {' '.join(newer)}, then patch_table.py --write"
    assert set(offered[offered.index(known[-1]) : offered.index(known[0]) + 1]) == set(known)
