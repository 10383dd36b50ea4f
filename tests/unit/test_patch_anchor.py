"""A patch's place in the syntax tree, and what is inserted there."""

from __future__ import annotations

import codecs
from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.patch.compose import Composed, compose
from patch_made import MODEL, TEXT, entries, entry


def composed(data: bytes, *given: dict[str, Any]) -> Composed:
    return compose(MODEL, data, entries(*given), {})


def inserted(*given: dict[str, Any], data: bytes = TEXT) -> list[tuple[int, str]]:
    """``(line number, text)`` of the lines that are new."""
    made = composed(data, *given).data
    assert made is not None
    old, new = data.decode().splitlines(), made.decode().splitlines()
    found, at = [], 0
    for number, line in enumerate(new, 1):
        if at < len(old) and line == old[at] and "NEW" not in line:
            at += 1
        else:
            found.append((number, line))
    assert at == len(old)
    return found


def anchored(where: str, statement: str | None = None, code: str = "NEW()", **anchor: Any) -> dict[str, Any]:
    place: dict[str, Any] = {"class": "Model", "function": "forward", **anchor}
    if statement:
        place["statement"] = statement
    return entry(where=where, code=code, anchor={k: v for k, v in place.items() if v is not None})


@pytest.mark.parametrize(
    ("given", "line", "text"),
    [
        (anchored("before", "if len(aux) == 0:"), 25, "        NEW()"),
        (anchored("before", "if  len( aux )==0 :"), 25, "        NEW()"),
        (anchored("before", "if len(aux) == 0:\n    return x"), 25, "        NEW()"),
        (anchored("after", "if len(aux) == 0:"), 27, "        NEW()"),
        (anchored("after", "aux.append(x)"), 22, "                NEW()"),
        (anchored("before", "return (x, aux)"), 27, "        NEW()"),
        (anchored("after", "return x, aux"), 31, "        NEW()"),
        (anchored("first_in_body", "for i in range(len(self.layers)):"), 20, "            NEW()"),
        (anchored("first_in_body", "if i in captured:"), 21, "                NEW()"),
        (anchored("first"), 18, "        NEW()"),
        (anchored("first", function="__init__"), 11, "        NEW()"),
        (anchored("before", "return 1", function="*"), 15, "        NEW()"),
        (anchored("before", "return 1", function=["nothing", "size"]), 15, "        NEW()"),
        (anchored("before", "return None", **{"class": None, "function": "helper"}), 41, "    NEW()"),
        (anchored("after", "import torch", **{"class": None, "function": None}), 4, "NEW()"),
        (
            anchored("before", "@property\ndef size(self):\n    return 1", function=None),
            13,
            "    NEW()",
        ),
        (anchored("before", "def size(self):", function=None), 13, "    NEW()"),
    ],
)
def test_where_code_goes(given: dict[str, Any], line: int, text: str) -> None:
    assert inserted(given) == [(line, text)]


def test_a_method_goes_to_the_end_of_its_class() -> None:
    added = anchored("add_method", function=None, code="def NEW(self):\n    return self.NEW()")
    end = b"            aux,\n        )\n"
    method = b"\n    def NEW(self):\n        return self.NEW()\n"
    assert composed(TEXT, added).data == TEXT.replace(end, end + method)


def test_a_statement_is_replaced_by_lines() -> None:
    made = composed(TEXT, anchored("replace", "return x, aux", code="y = x\nreturn y"))
    assert made.data == TEXT.replace(
        b"        return (\n            x,\n            aux,\n        )\n",
        b"        y = x\n        return y\n",
    )


def test_entries_at_one_place_follow_each_other() -> None:
    def named(name: str, given: dict[str, Any]) -> dict[str, Any]:
        return {**given, "name": name, "code": f"NEW_{name}()"}

    given = [
        named("a", anchored("before", "if len(aux) == 0:")),
        named("b", anchored("after", "for i in range(len(self.layers)):")),
        named("c", anchored("before", "if len(aux) == 0:")),
        named("d", anchored("after", "x = self.layers[i](x)")),
    ]
    order = ["            NEW_d()", "        NEW_b()", "        NEW_a()", "        NEW_c()"]
    assert [text for _, text in inserted(*given)] == order
    swapped = [text.strip() for _, text in inserted(given[2], given[0])]
    assert swapped == ["NEW_c()", "NEW_a()"]


@pytest.mark.parametrize(
    ("unless", "there"),
    [
        ({"method": "size"}, True),
        ({"method": "other"}, False),
        ({"statement": "x = self.layers[i](x)"}, True),
        ({"statement": "x = self.layers[i]"}, False),
        ({"text": "# noqa"}, True),
        ({"method": "other", "text": "# noqa"}, True),
    ],
)
def test_what_a_release_has_already_is_left_alone(unless: dict[str, str], there: bool) -> None:
    made = composed(TEXT, entry(unless=unless))
    assert made.states == {"aux": "already_upstream" if there else "applied"}
    assert (made.data == TEXT) == there


@pytest.mark.parametrize(
    ("given", "what", "shown"),
    [
        (
            anchored("before", "if len(aux) == 1:"),
            "is not in Model.forward",
            "line 25: Model.forward: if len(aux) == 0:",
        ),
        (anchored("before", "x = 1", **{"class": "Nope"}), "no class Nope", "line 6: class Model"),
        (
            anchored("before", "x = 1", function="fwd"),
            "no function fwd in class Model",
            "line 17: Model.forward",
        ),
        (
            anchored("before", "return x", **{"class": ["Model", "Other"]}),
            "is 3 times in Model.forward, Other.forward",
            "line 26: Model.forward: return x",
        ),
        (anchored("first", function=["__init__", "forward"]), "2 places fit", "line 9: Model.__init__"),
    ],
)
def test_an_anchor_that_is_not_there_once_shows_candidates(
    given: dict[str, Any], what: str, shown: str
) -> None:
    with pytest.raises(AerieError) as caught:
        composed(TEXT, given)
    assert caught.value.kind.code == "patch-anchor-not-found"
    assert what in caught.value.what
    assert shown in caught.value.evidence


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (anchored("before", "return x", **{"class": "Other"}), "is 2 times"),
        (
            anchored("first_in_body", "if len(aux) == 0:", **{"class": "Other"}),
            "another statement is on its line",
        ),
        (anchored("before", "b = 2", **{"class": "Other"}), "another statement is on its line"),
        (anchored("after", "a = 1", **{"class": "Other"}), "something follows on its last line"),
        (anchored("before", "if x is None:"), "it is an elif"),
        (anchored("after", "if x is None:"), "it is an elif"),
        (anchored("first_in_body", "x = self.layers[i](x)"), "the statement has no body"),
    ],
)
def test_places_where_lines_cannot_go_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(AerieError) as caught:
        composed(TEXT, given)
    assert why in caught.value.what
    assert caught.value.next


def test_two_patches_cannot_change_the_same_lines() -> None:
    first = anchored("replace", "if len(aux) == 0:")
    inside = {**anchored("before", "return x"), "name": "b"}
    for pair in ([first, inside], [first, {**first, "name": "b"}]):
        with pytest.raises(AerieError, match="change the same lines"):
            composed(TEXT, *pair)


def test_what_would_not_compile_is_refused() -> None:
    with pytest.raises(AerieError) as caught:
        composed(
            TEXT, anchored("before", "import torch", code="await NEW()", **{"class": None, "function": None})
        )
    assert caught.value.kind.code == "patch-does-not-compile"
    assert "patches: aux" in caught.value.evidence


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"def f():\r\n\tx = 1\r\n\treturn x", b"def f():\r\n\tx = 1\r\n\tNEW()\r\n\treturn x"),
        (b"def f():\n\tx = 1\n\treturn x\n", b"def f():\n\tx = 1\n\tNEW()\n\treturn x\n"),
        (b"def f():\r\treturn x\r", b"def f():\r\tNEW()\r\treturn x\r"),
        (
            codecs.BOM_UTF8 + "def f():\n    é = 'ü\x0c'\n    return x\n".encode(),
            codecs.BOM_UTF8 + "def f():\n    é = 'ü\x0c'\n    NEW()\n    return x\n".encode(),
        ),
        (
            "# -*- coding: latin-1 -*-\ndef f():\n    s = 'é'; y = 1\n    return x\n".encode("latin-1"),
            "# -*- coding: latin-1 -*-\ndef f():\n    s = 'é'; y = 1\n    NEW()\n    return x\n".encode(
                "latin-1"
            ),
        ),
        (b"def f():\n    a = 1\r\n    return x\n", b"def f():\n    a = 1\r\n    NEW()\n    return x\n"),
        (
            "def f():\n    s = '\u2028\x85'\n    return x\n".encode(),
            "def f():\n    s = '\u2028\x85'\n    NEW()\n    return x\n".encode(),
        ),
    ],
)
def test_bytes_survive(data: bytes, wanted: bytes) -> None:
    given = anchored("before", "return x", **{"class": None, "function": "f"})
    assert composed(data, given).data == wanted


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"def f():\n    return x", b"def f():\n    return x\n    NEW()"),
        (b"def f():\r\n    return x", b"def f():\r\n    return x\r\n    NEW()"),
        (b"def f():\n    return x  # why\n", b"def f():\n    return x  # why\n    NEW()\n"),
    ],
)
def test_a_file_without_a_last_newline_stays_without(data: bytes, wanted: bytes) -> None:
    given = anchored("after", "return x", **{"class": None, "function": "f"})
    assert composed(data, given).data == wanted


def test_text_that_the_files_encoding_lacks_is_refused() -> None:
    data = b"# coding: latin-1\ndef f():\n    return x\n"
    given = anchored("before", "return x", code="NEW('\u4e2d')", **{"class": None, "function": "f"})
    with pytest.raises(AerieError, match="cannot hold the inserted text"):
        composed(data, given)


def test_a_file_that_is_no_python_is_refused() -> None:
    with pytest.raises(AerieError, match="cannot be read as Python"):
        composed(b"def f(:\n", anchored("first", **{"class": None, "function": "f"}))
