"""Over arbitrary Python sources: apply and then revert is the identity, and what is inserted is all that changes."""

from __future__ import annotations

import ast
import tempfile
from pathlib import Path

from ansible.module_utils.aerie.patch.compose import compose
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patch_made import MODEL, entries, entry, make_tree, patch, snapshot

WORDS = st.sampled_from(["alpha", "β", "größe", "x1", "名", "_y"])
TEXTS = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\n\\'\"\0", exclude_categories=["Cs"]), max_size=8
)


@st.composite
def bodies(draw: st.DrawFn, depth: int = 0) -> list[str]:
    """Lines of statements; indentation is written as ``>`` and becomes spaces or tabs later."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["assign", "call", "comment", "blank", "string", "long", "if", "for"]))
        word = draw(WORDS)
        if kind == "assign":
            lines.append(f"{word} = {draw(st.integers(0, 9))}")
        elif kind == "call":
            lines.append(f"print({word}, '{draw(TEXTS)}')  # {draw(TEXTS)}")
        elif kind == "comment":
            lines.append(f"# {draw(TEXTS)}")
        elif kind == "blank":
            lines.append("")
        elif kind == "string":
            lines += [f"{word} = '''{draw(TEXTS)}", draw(TEXTS), "'''"]
        elif kind == "long":
            lines += [f"{word} = (", "   1 +", f" {draw(st.integers(0, 9))})"]
        elif depth < 2:
            head = f"if {word}:" if kind == "if" else f"for {word} in ():"
            lines += [head, *[f">{line}" for line in draw(bodies(depth=depth + 1))], ">pass"]
    return lines


@st.composite
def sources(draw: st.DrawFn) -> bytes:
    """A module with a class, a method and the anchor somewhere in it; any newline, indentation and last line."""
    newline = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    indent = draw(st.sampled_from(["    ", "\t", "  "]))
    before, inside, after = draw(bodies()), draw(bodies()), draw(bodies())
    lines = ["class Model:", *[f">{line}" for line in before], ">def forward(self, aux):"]
    lines += [f">>{line}" for line in inside]
    lines += [">>if len(aux) == 0:", f">>>{draw(st.sampled_from(['return', 'raise', 'pass']))}"]
    lines += [f">>{line}" for line in after] + [">>return aux"]
    text = newline.join(_indented(line, indent) for line in lines) + draw(st.sampled_from(["", newline]))
    bom = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    return bom + text.encode()


def _indented(line: str, indent: str) -> str:
    bare = line.lstrip(">")
    return indent * (len(line) - len(bare)) + bare


PLACES = st.sampled_from(
    [
        entry(),
        entry(where="after"),
        entry(where="first_in_body"),
        entry(where="first", anchor={"class": "Model", "function": "forward"}),
        entry(where="after", anchor={"class": "Model", "function": "forward", "statement": "return aux"}),
        entry(where="add_method", anchor={"class": "Model"}, code="def seen(self):\n    return 'ü'"),
    ]
)


@settings(deadline=None)
@given(sources(), PLACES)
def test_what_is_inserted_is_all_that_changes(data: bytes, given: dict[str, object]) -> None:
    made = compose(MODEL, data, entries(given), {}).data
    assert made is not None
    compile(made, "x", "exec")
    was, now = (
        raw.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\r").replace(b"\n", b"\r")
        for raw in (data, made)
    )
    size = len(now) - len(was)
    ends = [end for end in range(len(was) + 1) if now[:end] == was[:end] and now[end + size :] == was[end:]]
    assert ends, "more than one run of bytes was inserted"
    assert (b"\r\n" in made) == (b"\r\n" in data)
    assert made.endswith((b"\n", b"\r")) == data.endswith((b"\n", b"\r"))
    assert len(ast.dump(ast.parse(made))) > len(ast.dump(ast.parse(data)))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sources(), st.lists(PLACES, min_size=1, max_size=3), st.booleans())
def test_apply_then_revert_is_the_identity(data: bytes, given: list[dict[str, object]], record: bool) -> None:
    named = [{**one, "name": f"n{number}"} for number, one in enumerate(given)]
    with tempfile.TemporaryDirectory() as place:
        site = make_tree(Path(place) / "site", {MODEL: data}, record=record)
        before = snapshot(site)
        assert patch(site, *named).changed
        assert patch(site, *named).changed is False
        assert patch(site).tree == "pristine"
        assert snapshot(site) == before
