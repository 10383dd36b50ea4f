"""Installed files against their wheel's RECORD."""

from __future__ import annotations

import os
import time
import zipfile
from pathlib import Path

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.release.wheel_record import differences, find_dist_info, parse_record
from release_wheels_made import make_sglang, make_wheel


@pytest.fixture
def site(tmp_path: Path) -> Path:
    with zipfile.ZipFile(make_sglang(tmp_path / "wheels", "0.5.23")) as wheel:
        wheel.extractall(tmp_path / "site")
    return tmp_path / "site"


def found(site: Path, **options: int) -> list[str]:
    return [str(difference) for difference in differences(site, "sglang", **options)]


def test_an_untouched_tree_has_none(site: Path) -> None:
    (site / "sglang" / "__pycache__").mkdir()
    (site / "sglang" / "__pycache__" / "launch.cpython-311.pyc").write_bytes(b"code")
    (site / "other").mkdir()
    (site / "other" / "mine.py").write_text("not of this distribution\n")
    assert found(site) == []


def test_changed_missing_and_extra_are_named(site: Path) -> None:
    (site / "sglang" / "launch.py").write_text("def main():\n    print('debugging')\n")
    (site / "sglang" / "srt" / "server_args.py").unlink()
    (site / "sglang" / "srt" / "hack.py").write_text("")
    assert found(site) == [
        "changed: sglang/launch.py",
        "extra: sglang/srt/hack.py",
        "missing: sglang/srt/server_args.py",
    ]


def test_quick_hashes_what_was_modified_since(site: Path) -> None:
    launch = site / "sglang" / "launch.py"
    text = launch.read_text()
    before = time.time_ns()
    launch.write_text(text.replace("launched", "LAUNCHED"))
    os.utime(launch, ns=(before + 10**9, before + 10**9))
    assert found(site, unchanged_since_ns=before) == ["changed: sglang/launch.py"]
    launch.write_text(text)
    os.utime(launch, ns=(before + 10**9, before + 10**9))
    assert found(site, unchanged_since_ns=before) == []  # content decides, not the time


def test_same_size_and_old_time_needs_the_full_check(site: Path) -> None:
    launch = site / "sglang" / "launch.py"
    launch.write_text(launch.read_text().replace("launched", "LAUNCHED"))
    os.utime(launch, (1, 1))
    assert found(site, unchanged_since_ns=time.time_ns()) == []
    assert found(site) == ["changed: sglang/launch.py"]


def test_a_changed_size_is_seen_whatever_the_time(site: Path) -> None:
    launch = site / "sglang" / "launch.py"
    launch.write_text(launch.read_text() + "print()\n")
    os.utime(launch, (1, 1))
    assert found(site, unchanged_since_ns=time.time_ns()) == ["changed: sglang/launch.py"]


def test_no_record_is_an_error(site: Path) -> None:
    (site / "sglang-0.5.23.dist-info" / "RECORD").unlink()
    for name in ("sglang", "not-there"):
        with pytest.raises(AerieError) as caught:
            differences(site, name)
        assert caught.value.kind.code == "record-missing"


def test_dist_info_is_found_by_normalised_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(make_wheel(tmp_path, "Sglang-Kernel", "0.4.5")) as wheel:
        wheel.extractall(tmp_path / "site")
    assert (
        find_dist_info(tmp_path / "site", "sglang_kernel") == tmp_path / "site/Sglang_Kernel-0.4.5.dist-info"
    )
    assert find_dist_info(tmp_path / "site", "sglang") is None


def test_names_with_commas_and_lines_without_hash() -> None:
    recorded = parse_record('"a,b.py",sha256=abc,3\nx/RECORD,,\n../../bin/tool,sha512=zzz,4\n')
    assert [(file.path, file.sha256, file.size) for file in recorded] == [
        ("a,b.py", "abc", 3),
        ("x/RECORD", None, None),
        ("../../bin/tool", None, 4),
    ]
