"""The real server against the prediction: the right wiring exactly, every wrong one at 1.0."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

import predict
import pytest
from serve import Answer, Server
from test_pair import pair  # noqa: F401 - the fixture

STORY = [" Every", " Nobody", "Tell me", "They carry small lanterns, because winter"]


@dataclass(frozen=True)
class Case:
    draft: str
    steps: int
    algorithm: str
    right: bool


CASES = [
    Case("draft", 3, "EAGLE3", True),
    Case("draft-idorder", 2, "EAGLE3", True),
    Case("draft-shift+1", 3, "EAGLE3", False),
    Case("draft-perm-102", 3, "EAGLE3", False),
    Case("draft-d2t0", 3, "EAGLE3", False),
    Case("draft", 3, "EAGLE", False),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def as_answer(prediction: predict.Prediction) -> Answer:
    return Answer(prediction.tokens, prediction.histogram, prediction.finish)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.draft}-{c.algorithm}-{c.steps}")
def test_the_server_does_as_predicted(case, engine_python, pair: Path, tmp_path):  # noqa: F811
    tables = predict.load(pair / "pair.json")
    tokens = 160 if case.right else 40
    with (tmp_path / "server.log").open("w") as log:
        server = Server(
            engine_python,
            pair,
            port=free_port(),
            draft=case.draft,
            steps=case.steps,
            algorithm=case.algorithm,
            log=log,
        )
        with server:
            single = [server.generate([text], tokens, ignore_eos=True)[0] for text in STORY]
            together = server.generate(STORY, tokens, ignore_eos=True)
            goodbye = server.generate(["Say goodbye!"], tokens)[0]

    def foretell(text: str, ignore_eos: bool) -> predict.Prediction:
        last = predict.last_token(tables, text)
        return predict.predict(tables, last, tokens, case.steps, ignore_eos=ignore_eos, right=case.right)

    story, farewell = [foretell(text, True) for text in STORY], foretell("Say goodbye!", False)
    observed = [predict.Prediction(a.histogram, a.tokens, a.finish) for a in [*single, *together, goodbye]]
    figures = predict.total(observed)
    predicted = predict.total([*story, *story, farewell])
    lengths = f"{predicted.accept_length:.4f} | {figures.accept_length:.4f}"
    print(f"\n| {case.draft} | {case.algorithm} | {case.steps} | {lengths} | {list(figures.histogram)} |")
    assert single == [as_answer(p) for p in story]
    assert together == [as_answer(p) for p in story]
    assert goodbye == as_answer(farewell)
    assert goodbye.finish == "stop"
    if not case.right:
        assert figures.accept_length == 1.0
