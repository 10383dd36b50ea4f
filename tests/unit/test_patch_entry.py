"""Entries are checked field by field before anything is looked at."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.patch.entry import parse_entries, probe_texts
from patch_made import MODEL, PROBE, entries, entry

DIFF = f"--- a/{MODEL}\n+++ b/{MODEL}\n@@ -1 +1 @@\n-a\n+b\n"


def at(**anchor: Any) -> dict[str, Any]:
    return {"class": "Model", "function": "forward", "statement": "x = 1", **anchor}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (entry(name=""), "name: lower-case"),
        (entry(name="Aux"), "name: lower-case"),
        (entry(name="probe"), "not probe alone"),
        (entry(set="test"), "set: test is none of"),
        (entry(purpose=""), "purpose: one sentence"),
        (entry(releases="0.5.9"), "releases: '0.5.9' is no version specifier"),
        (entry(releases=0.5), "releases: text is needed, not float"),
        (entry(file="/etc/x.py"), "file: /etc/x.py: a path like"),
        (entry(file="sglang/../x.py"), "without .."),
        (entry(file="sglang//x.py"), "doubled slashes"),
        (entry(file="sglang/x.txt"), "a path like"),
        (entry(wher="before"), "wher: unknown field"),
        (entry(where="above"), "where: above is none of"),
        (entry(code="  "), "code: nothing to insert"),
        (entry(code="if x:"), "code: expected an indented block"),
        (entry(anchor="x"), "anchor: a mapping is needed"),
        (entry(anchor=at(line=3)), "anchor.line: unknown"),
        (entry(anchor=at(statement="")), "anchor.statement: is needed"),
        (entry(anchor=at(statement="else:")), "'else:' is no statement"),
        (entry(anchor=at(statement="a = 1\nb = 2")), "2 statements"),
        (entry(anchor=at(statement="try:")), "'try:' is no statement"),
        (entry(anchor=at(), where="first"), "where first takes none"),
        (entry(anchor={"class": "Model"}, where="first"), "anchor.function: is needed"),
        (entry(anchor={"function": "f"}, where="add_method"), "takes a class and no function"),
        (entry(anchor={"function": "*", "statement": "x = 1"}), "anchor.class is needed"),
        (entry(anchor={"function": ["f", 1], "statement": "x = 1"}), "a name or a list of names"),
        (entry(unless={"line": "x"}), "unless.line: unknown"),
        (entry(unless={"statement": "x ="}), "unless: anchor.statement: 'x =' is no statement"),
        (
            entry(anchor={"function": "f", "statement": "x"}, unless={"method": "m"}),
            "unless.method: anchor.class",
        ),
        (entry(probes={PROBE: "x ="}), f"probes.{PROBE}: invalid syntax"),
        (entry(probes={"../x.py": "x = 1"}), "probes: ../x.py: a path like"),
        (entry(diff=DIFF), "file: does not go with diff"),
        ("text", "it is str, a mapping is needed"),
    ],
)
def test_what_is_wrong_is_named(given: Any, said: str) -> None:
    with pytest.raises(AerieError) as caught:
        parse_entries([given])
    assert caught.value.kind.code == "bad-patch-entry"
    assert any(said in line for line in caught.value.evidence), caught.value.evidence


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(AerieError) as caught:
        parse_entries([entry(set="x", purpose="", where="y")])
    assert len(caught.value.evidence) == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([entry(), entry()], "two entries"),
        ([entry(probes={PROBE: None})], f"no entry gives the text of {PROBE}"),
        ([entry(probes={PROBE: "a = 1\n"}), entry(name="b", probes={PROBE: "a = 2\n"})], "another text"),
        ([entry(probes={MODEL: "a = 1\n"})], "is a probe of another entry"),
    ],
)
def test_a_list_must_fit_together(given: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(AerieError) as caught:
        parse_entries(given)
    assert said in caught.value.evidence[0]


def test_the_hash_covers_what_is_done_and_nothing_else() -> None:
    def hashed(**changes: Any) -> str:
        made = entries(entry(probes={PROBE: "a = 1\n"}) | changes)
        return made[0].sha256(probe_texts(made))

    assert hashed() == hashed(purpose="Other.", source="PR #1")
    others = [
        hashed(code="y()"),
        hashed(where="after"),
        hashed(releases="<1"),
        hashed(probes={PROBE: "a = 2\n"}),
    ]
    assert len({hashed(), *others}) == 5


@pytest.mark.parametrize("code", ["return x", "await x", "if a:\n    b()\nelse:\n    c()", "yield 1"])
def test_code_may_be_what_a_function_may_hold(code: str) -> None:
    assert entries(entry(code=code))[0].code == code
