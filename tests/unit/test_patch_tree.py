"""A tree made equal to pristine plus patches: states, proofs, foreign files, and what must not change."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.patch import pristine as patch_pristine
from ansible.module_utils.aerie.patch import replace as patch_replace
from ansible.module_utils.aerie.patch import site as patch_site
from ansible.module_utils.aerie.patch.store import DIRECTORY
from ansible.module_utils.aerie.patch.tree import changed_by_others
from ansible.module_utils.aerie.release import wheel_record
from patch_made import MODEL, PROBE, TEXT, entry, make_tree, patch, snapshot

PATCHED = TEXT.replace(
    b"        if len(aux) == 0:\n", b"        aerie_probe.seen(aux)\n        if len(aux) == 0:\n", 1
)
WITH_PROBE = entry(probes={PROBE: "def seen(aux):\n    pass\n"})
FIX = entry(
    name="later",
    set="fixes",
    anchor={"class": "Model"},
    where="add_method",
    code="def later(self):\n    return 1",
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "site")


def code_of(site: Path, *given: dict[str, Any], **options: Any) -> AerieError:
    before = snapshot(site)
    with pytest.raises(AerieError) as caught:
        patch(site, *given, **options)
    assert snapshot(site) == before
    return caught.value


def test_apply_again_change_and_revert(site: Path) -> None:
    before = snapshot(site)
    first = patch(site, WITH_PROBE)
    assert (first.changed, first.tree, first.proof) == (True, "debug: aux", "RECORD")
    assert first.messages == ["[OK] deepseek_v2.py: aux applied", "[OK] aerie_probe.py: probe applied"]
    assert (site / MODEL).read_bytes() == PATCHED
    applied = snapshot(site)
    assert patch(site, WITH_PROBE).changed is False
    assert snapshot(site) == applied

    second = patch(site, WITH_PROBE, FIX)
    assert second.tree == "debug: aux; fixes: later"
    third = patch(site, FIX)
    assert third.tree == "pristine + fixes: later"
    assert third.messages == [
        "[OK] deepseek_v2.py: later applied",
        "[OK] deepseek_v2.py: aux removed",
        "[OK] aerie_probe.py: probe removed",
    ]
    assert not (site / PROBE).exists()

    last = patch(site)
    assert (last.changed, last.tree) == (True, "pristine")
    assert snapshot(site) == before
    assert not (site / DIRECTORY).exists()
    assert wheel_record.differences(site, "sglang") == []
    assert patch(site).changed is False


def test_check_says_the_same_and_writes_nothing(site: Path) -> None:
    before = snapshot(site)
    would = patch(site, WITH_PROBE, check=True, diff=True)
    assert snapshot(site) == before
    did = patch(site, WITH_PROBE, diff=True)
    assert would.as_dict() == did.as_dict()
    assert "+        aerie_probe.seen(aux)" in did.diff.splitlines()
    assert "+def seen(aux):" in did.diff.splitlines()


def test_states_that_change_nothing(site: Path) -> None:
    before = snapshot(site)
    given = [entry(releases="<0.5.9"), entry(name="b", unless={"method": "size"}, probes={PROBE: "a = 1\n"})]
    done = patch(site, *given)
    assert (done.changed, done.tree, done.entries) == (False, "pristine", [])
    assert done.messages == [
        "[OK] deepseek_v2.py: b already upstream",
        "[--] deepseek_v2.py: aux not applicable (0.5.9)",
    ]
    assert snapshot(site) == before


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ([entry(), entry(name="b", anchor={"class": "X", "statement": "x = 1"})], "patch-anchor-not-found"),
        ([entry(), entry(name="b", file="sglang/gone.py")], "patch-anchor-not-found"),
        (
            [entry(), entry(name="b", where="first", anchor={"function": "helper"}, code="await x")],
            "patch-does-not-compile",
        ),
        ([entry(probes={"sglang/none/x.py": "a = 1\n"})], "bad-patch-target"),
    ],
)
def test_all_files_or_none(site: Path, given: list[dict[str, Any]], code: str) -> None:
    make_other = entry(name="other", file="sglang/other.py", anchor={"function": "f"}, where="first")
    (site / "sglang" / "other.py").write_bytes(b"def f():\n    pass\n")
    info = next(site.glob("*.dist-info")) / "RECORD"
    info.unlink()
    assert code_of(site, make_other, *given).kind.code == code


def test_a_file_that_somebody_else_changed_is_left_and_shown(site: Path) -> None:
    (site / f"{MODEL}.orig").write_bytes(TEXT)
    (site / MODEL).write_bytes(TEXT.replace(b"aux = []", b"aux = [1]"))
    error = code_of(site, entry())
    assert error.kind.code == "foreign-change"
    assert "+        aux = [1]" in error.evidence
    assert "-        aux = []" in error.evidence
    (site / f"{MODEL}.orig").unlink()
    assert "no copy of the pristine file" in code_of(site, entry()).evidence[1]


def test_a_change_to_a_patched_file_is_foreign_too(site: Path) -> None:
    patch(site, WITH_PROBE)
    with (site / MODEL).open("ab") as stream:
        stream.write(b"print('debugging')\n")
    for given in ([], [entry()], [FIX]):
        error = code_of(site, *given)
        assert "+print('debugging')" in error.evidence
    (site / MODEL).write_bytes(PATCHED)
    assert patch(site).tree == "pristine"


def test_the_diff_of_a_foreign_file_is_bounded(site: Path) -> None:
    (site / f"{MODEL}.bak").write_bytes(TEXT)
    (site / MODEL).write_bytes(b"# mine\n" * 500)
    error = code_of(site, entry())
    assert len(error.evidence) == patch_pristine.DIFF_LINES + 1
    assert error.evidence[-1].startswith("… and ")


def test_a_foreign_file_in_a_probes_place_is_kept(site: Path) -> None:
    (site / PROBE).write_text("mine = True\n")
    error = code_of(site, WITH_PROBE)
    assert error.kind.code == "foreign-change"
    assert "mine = True" in error.evidence


def test_files_that_no_patch_is_for_are_only_named(site: Path) -> None:
    (site / "sglang" / "__init__.py").write_text("import this\n")
    patch(site, WITH_PROBE)
    assert changed_by_others(site) == ["changed: sglang/__init__.py"]


def test_a_lost_pristine_copy_is_said(site: Path) -> None:
    patch(site, entry())
    for path in (site / DIRECTORY / "pristine").iterdir():
        path.write_bytes(b"other")
    assert code_of(site).kind.code == "pristine-copy-lost"


def test_without_record_git_proves(tmp_path: Path) -> None:
    site = make_tree(tmp_path / "checkout" / "python", record=False)
    run = ["git", "-C", str(site.parent), "-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run([*run, "init", "-q"], check=True)
    subprocess.run([*run, "add", "."], check=True)
    subprocess.run([*run, "commit", "-qm", "x"], check=True)
    before = snapshot(site)
    done = patch(site, WITH_PROBE)
    assert done.proof == "git"
    status = subprocess.run([*run, "status", "--short"], capture_output=True, text=True, check=True).stdout
    assert DIRECTORY not in status
    assert patch(site).tree == "pristine"
    assert snapshot(site) == before
    (site / MODEL).write_bytes(TEXT + b"x = 1\n")
    error = code_of(site, entry())
    assert "+x = 1" in error.evidence
    assert "git checkout" in error.next


def test_without_both_the_first_sight_proves(tmp_path: Path) -> None:
    site = make_tree(tmp_path / "site", {MODEL: TEXT + b"# edited long ago\n"}, record=False)
    before = snapshot(site)
    done = patch(site, WITH_PROBE)
    assert done.proof == "first seen"
    with (site / MODEL).open("ab") as stream:
        stream.write(b"x = 1\n")
    assert "+x = 1" in code_of(site).evidence
    (site / MODEL).write_bytes((site / MODEL).read_bytes().removesuffix(b"x = 1\n"))
    patch(site)
    assert snapshot(site) == before


def test_a_link_is_refused(site: Path) -> None:
    (site / MODEL).rename(site / "elsewhere.py")
    (site / MODEL).symlink_to(site / "elsewhere.py")
    error = code_of(site, entry())
    assert error.kind.code == "bad-patch-target"
    assert "link to" in error.evidence[0]


def test_mode_and_extended_attributes_stay(site: Path) -> None:
    (site / MODEL).chmod(0o640)
    attributes = True
    try:
        os.setxattr(site / MODEL, "user.note", b"mine")
    except OSError:
        attributes = False
    os.chown(site / MODEL, -1, os.getegid())
    for given in ([WITH_PROBE], []):
        patch(site, *given)
        assert stat.S_IMODE((site / MODEL).stat().st_mode) == 0o640
        assert not attributes or os.getxattr(site / MODEL, "user.note") == b"mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_stays(site: Path) -> None:
    os.chown(site / MODEL, 1234, 2345)
    os.chown((site / PROBE).parent, 1234, 2345)
    patch(site, WITH_PROBE)
    for path in (MODEL, PROBE):
        assert ((site / path).stat().st_uid, (site / path).stat().st_gid) == (1234, 2345)
    patch(site)
    assert ((site / MODEL).stat().st_uid, (site / MODEL).stat().st_gid) == (1234, 2345)


def test_hard_links_of_the_release_are_not_written_through(site: Path, tmp_path: Path) -> None:
    (tmp_path / "cache.py").hardlink_to(site / MODEL)
    patch(site, entry())
    assert (tmp_path / "cache.py").read_bytes() == TEXT


def test_a_failure_midway_puts_back_what_was_replaced(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(site)
    real = patch_replace._swap
    calls = []

    def fails_once(change: Any, data: bytes | None) -> None:
        calls.append(change.path)
        if len(calls) == 2:
            raise OSError(28, "No space left on device", str(change.target))
        real(change, data)

    monkeypatch.setattr(patch_replace, "_swap", fails_once)
    error = code_of(site, WITH_PROBE)
    assert error.kind.code == "patch-not-written"
    assert "No space left" in error.what
    assert snapshot(site) == before
    monkeypatch.undo()
    assert patch(site, WITH_PROBE).changed


@pytest.mark.parametrize("present", ["dist-info", "version.py", "egg-info"])
def test_the_release_is_read_from_the_tree(tmp_path: Path, present: str) -> None:
    site = make_tree(tmp_path / "site", record=present == "dist-info")
    if present == "version.py":
        (site / "sglang" / "version.py").write_text('__version__ = "0.5.9"\n')
    if present == "egg-info":
        (site / "sglang.egg-info").mkdir()
        (site / "sglang.egg-info" / "PKG-INFO").write_text("Name: sglang\nVersion: 0.5.9\n")
    assert patch_site.release_of(site) == "0.5.9"


def test_a_tree_without_a_release_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AerieError, match="nothing in"):
        patch_site.release_of(make_tree(tmp_path / "site", record=False))
    with pytest.raises(AerieError, match="no sglang in"):
        patch_site.release_of(tmp_path)
