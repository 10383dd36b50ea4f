"""The small form of a reference, and what norms and first values can decide."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.hidden.events import Event, Served
from ansible.module_utils.aerie.hidden.reference import Known, compared, read_json_reference, small_figures
from ansible.module_utils.aerie.hidden.verdict import Candidate, decide

GOOD = (0.0295, -0.0113, -0.0168)  # a known good case: what was served …
TRAINED = (0.0295, -0.0114, -0.0170)  # … and what training had dumped


def event(first: tuple[float, ...], norm: float = 10.0, **more: Any) -> Event:
    return Event("aux_capture", shape=(12, 64), dtype="bfloat16", norm=norm, first=first, last=first, **more)


def test_the_known_good_case_is_within_bfloat16() -> None:
    found = compared(Known(None, GOOD), Known(None, TRAINED), event(GOOD, norm=0.5))
    assert found is not None
    assert found["error"] == pytest.approx(0.0063, abs=0.0005)
    other = compared(Known(None, (0.0311, -0.0102, -0.0140)), Known(None, TRAINED), event(GOOD, norm=0.5))
    assert other is not None
    assert other["error"] is not None
    assert other["error"] > 0.05


def test_small_values_are_measured_against_their_row() -> None:
    """A value near nothing carries the rounding of its whole row."""
    found = compared(Known(None, (0.0001,) * 5), Known(None, (0.0003,) * 5), event((), norm=27.7))  # rms 1
    assert found is not None
    assert found["error"] < 0.01


VALUES = {layer: tuple(0.01 * (layer + 1) * sign for sign in (1, -1, 1, 1, -1)) for layer in range(-1, 6)}
VALUES[-1] = (0.5, 0.4, 0.3, 0.2, 0.1)


def made(captured: list[int]) -> Served:
    layers = tuple(
        Event("layer_output", layer=n, shape=(12, 64), norm=10.0 + n, first=VALUES[n], last=VALUES[n])
        for n in range(6)
    )
    aux = tuple(event(VALUES[n], 10.0 + n, index=place, layer=n + 1) for place, n in enumerate(captured))
    return Served(12, aux=aux, layers=layers)


def judge(captured: list[int], text: str) -> Any:
    found = made(captured)
    reference = read_json_reference(text, "r.json")
    candidates = [Candidate(name, layer) for name, layer, _ in found.candidates]
    return decide(small_figures(reference, found), candidates, 0.05, reference.layers)


def as_json(layers: list[int], **drop: bool) -> str:
    entries = [
        {"layer": n, "norm": (10.0 + n) * 1.002, "first": [v * 1.004 for v in VALUES[n]]} for n in layers
    ]
    return json.dumps({"input_ids": list(range(12)), "layers": entries})


def test_norms_and_first_values_decide() -> None:
    assert judge([1, 3, 5], as_json([1, 3, 5])).matched
    wrong = judge([1, 2, 5], as_json([1, 3, 5]))
    assert (
        wrong.sentence
        == "segment 2 carries the output of layer 2; the draft was trained on the output of layer 3"
    )


def test_full_rows_in_json() -> None:
    rows = [[1.0, 2.0], [3.0, 4.0]]
    read = read_json_reference(json.dumps({"input_ids": [1, 2], "layers": [{"states": rows}]}), "r.json")
    assert read.known == (Known(pytest.approx(30**0.5), (1.0, 2.0), (3.0, 4.0)),)


def test_layers_by_name() -> None:
    read = read_json_reference(
        '{"input_ids": [1], "layers": {"2": {"norm": 3.5}, "30": {"first": [1]}}}', "r.json"
    )
    assert read.layers == (2, 30)
    assert read.known == (Known(3.5), Known(None, (1.0,)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "not JSON"),
        ("[]", "no object"),
        ('{"layers": [{"norm": 1}]}', "input_ids"),
        ('{"input_ids": ["a"], "layers": [{"norm": 1}]}', "input_ids"),
        ('{"input_ids": [1], "layers": []}', "layers"),
        ('{"input_ids": [1], "layers": [{}]}', "neither norm"),
        ('{"input_ids": [1], "layers": [{"norm": 0}]}', "neither norm"),
        ('{"input_ids": [1], "layers": [{"layer": 1, "norm": 1}, {"norm": 1}]}', "some layers"),
        ('{"input_ids": [1, 2], "layers": [{"states": [[1]]}]}', "2 rows"),
    ],
)
def test_references_that_are_refused(text: str, words: str) -> None:
    with pytest.raises(AerieError) as refused:
        read_json_reference(text, "r.json")
    assert refused.value.kind.code == "hidden-reference-unusable"
    assert words in refused.value.evidence[0]
