"""Plain unified diffs: all hunks or nothing, no fuzz."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.patch.unified import apply_diff, parse_diff
from hypothesis import given, settings
from hypothesis import strategies as st
from patch_made import MODEL, TEXT, entry, make_tree, patch, snapshot

OTHER = "sglang/other.py"


def diff_of(before: bytes, after: bytes, path: str = MODEL, context: int = 3) -> str:
    """As ``diff -u`` writes it, with its note about a missing last newline."""
    was, now = (data.decode().splitlines(keepends=True) for data in (before, after))
    lines = difflib.unified_diff(was, now, f"a/{path}", f"b/python/{path}", n=context)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def mine(diff: str, **changes: Any) -> dict[str, Any]:
    return {"name": "mine", "set": "own", "purpose": "Mine.", "diff": diff, **changes}


EDITED = TEXT.replace(b"aux = []", b"aux = list()").replace(b"return None", b"return 1")


def test_a_diff_goes_in_and_out(tmp_path: Path) -> None:
    site = make_tree(tmp_path / "site", {OTHER: b"a = 1\n"})
    before = snapshot(site)
    text = diff_of(TEXT, EDITED) + diff_of(b"a = 1\n", b"a = 1\nb = 2\n", OTHER)
    done = patch(site, mine(text), entry())
    assert done.tree == "debug: aux; own: mine"
    assert (site / OTHER).read_bytes() == b"a = 1\nb = 2\n"
    assert b"aux = list()" in (site / MODEL).read_bytes()
    assert b"aerie_probe.seen(aux)" in (site / MODEL).read_bytes()
    assert patch(site, mine(text), entry()).changed is False
    patch(site)
    assert snapshot(site) == before
    assert not [path for path in site.rglob("*") if path.suffix in (".rej", ".orig")]


def test_one_hunk_that_does_not_fit_keeps_all_out(tmp_path: Path) -> None:
    site = make_tree(tmp_path / "site", {OTHER: b"a = 1\n"})
    text = diff_of(b"a = 1\n", b"a = 2\n", OTHER) + diff_of(TEXT.replace(b"aux = []", b"aux = 0"), EDITED)
    before = snapshot(site)
    with pytest.raises(AerieError) as caught:
        patch(site, mine(text))
    assert caught.value.kind.code == "hunk-does-not-fit"
    assert MODEL in caught.value.what
    assert snapshot(site) == before


def test_a_diff_that_is_upstream_changes_nothing(tmp_path: Path) -> None:
    site = make_tree(tmp_path / "site", {MODEL: EDITED})
    done = patch(site, mine(diff_of(TEXT, EDITED)))
    assert (done.changed, done.messages) == (False, ["[OK] deepseek_v2.py: mine already upstream"])


def test_a_hunk_may_have_moved_to_one_other_place() -> None:
    (diff,) = parse_diff("mine", diff_of(TEXT, EDITED))
    assert apply_diff("mine", diff, b"# one more\n" + TEXT) == b"# one more\n" + EDITED
    (small,) = parse_diff("mine", diff_of(b"x = 1\n", b"x = 2\n"))
    with pytest.raises(AerieError, match="does not fit"):
        apply_diff("mine", small, b"\nx = 1\nx = 1\n")


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_a_files_own_newlines_stay(newline: str) -> None:
    (diff,) = parse_diff("mine", diff_of(TEXT, EDITED))
    was, now = (data.decode().replace("\n", newline).encode() for data in (TEXT, EDITED))
    assert apply_diff("mine", diff, was) == now


def test_a_new_file_comes_and_goes(tmp_path: Path) -> None:
    site = make_tree(tmp_path / "site")
    before = snapshot(site)
    text = f"--- /dev/null\n+++ b/{OTHER}\n@@ -0,0 +1,2 @@\n+a = 1\n+b = 2\n"
    patch(site, mine(text))
    assert (site / OTHER).read_bytes() == b"a = 1\nb = 2\n"
    patch(site)
    assert snapshot(site) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing\n", "no --- and +++ lines"),
        (f"--- a/{MODEL}\n+++ b/{MODEL}\n", "no hunks"),
        ("@@ -1 +1 @@\n-a\n+b\n", "a hunk before any"),
        (f"--- a/{MODEL}\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "removes"),
        ("--- a/../x.py\n+++ b/../x.py\n@@ -1 +1 @@\n-a\n+b\n", "a path like"),
        (f"--- a/{MODEL}\n+++ b/{MODEL}\n@@ -1,3 +1,3 @@\n-a\n+b\n", "sooner than its head says"),
        (f"--- a/{MODEL}\n+++ b/{MODEL}\n@@ x @@\n-a\n+b\n", "is no hunk's head"),
        ("diff --git a/x b/y\nrename from x\nrename to y\n", "rename from x"),
        (2 * f"--- a/{MODEL}\n+++ b/{MODEL}\n@@ -1 +1 @@\n-a\n+b\n", "a file is in it twice"),
    ],
)
def test_what_is_no_plain_diff_is_refused(text: str, said: str) -> None:
    with pytest.raises(AerieError) as caught:
        parse_diff("mine", text)
    assert caught.value.kind.code == "bad-unified-diff"
    assert said in caught.value.message()


LINES = st.lists(st.sampled_from(["a = 1", "b = 2", "c = 3", "", "def f(): pass", "# é"]), max_size=12)


@settings(deadline=None)
@given(LINES, LINES, st.integers(0, 3), st.booleans())
def test_any_diff_gives_what_it_was_made_from(
    was: list[str], now: list[str], context: int, last: bool
) -> None:
    before, after = ("\n".join(lines).encode() + (b"\n" if last and lines else b"") for lines in (was, now))
    text = diff_of(before, after, context=context)
    if not before or not after or before == after:
        return
    (diff,) = parse_diff("mine", text)
    assert apply_diff("mine", diff, before) == after
