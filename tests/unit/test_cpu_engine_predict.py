"""What a clockwork pair must accept, on tables small enough to follow by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

CPU_ENGINE = Path(__file__).resolve().parent.parent / "cpu_engine"
sys.path.insert(0, str(CPU_ENGINE))

import predict

# Ring 0 1 2 3 4; 5 -> 6 -> 9 (EOS) -> 0. The draft misses token 2 at the first position, 4 at all further
# ones. With two steps: root 0 accepts 2 (1, 2) -> 3 accepts 2 (4, 0) -> 1 accepts 0 -> 2 accepts 1 (3) -> 4
# accepts 2 -> 2.
PAIR = predict.from_tables(
    {
        "successor": [1, 2, 3, 4, 0, 6, 9, 0, 0, 0],
        "wrong": [[2], [4]],
        "ring": [0, 1, 2, 3, 4],
        "starts": [0],
        "eos": 9,
        "words": {" b": 7},
        "byte_ids": list(range(256)),
    }
)


@pytest.mark.parametrize(
    ("last", "tokens", "steps", "histogram", "output", "finish"),
    [
        (4, 8, 2, (1, 0, 2), (0, 1, 2, 3, 4, 0, 1, 2), "length"),
        (4, 7, 2, (0, 0, 2), (0, 1, 2, 3, 4, 0, 1), "length"),
        (4, 6, 2, (0, 0, 2), (0, 1, 2, 3, 4, 0), "length"),
        (4, 1, 2, (0, 0, 0), (0,), "length"),
        (4, 4, 1, (0, 2), (0, 1, 2, 3), "length"),
        (0, 3, 3, (1, 1, 0, 0), (1, 2, 3), "length"),
        (5, 50, 2, (0, 0, 1), (6, 9), "stop"),
        (5, 2, 2, (0, 0, 1), (6, 9), "stop"),
        (6, 50, 2, (0, 0, 0), (9,), "stop"),
    ],
)
def test_predict(last, tokens, steps, histogram, output, finish):
    assert predict.predict(PAIR, last, tokens, steps) == predict.Prediction(histogram, output, finish)


def test_ignore_eos_goes_on():
    one = predict.predict(PAIR, 5, 5, 2, ignore_eos=True)
    assert one.tokens == (6, 9, 0, 1, 2)
    assert one.finish == "length"


def test_a_wrong_wiring_says_the_same_and_accepts_nothing():
    right, wrong = (predict.predict(PAIR, 4, 8, 2, right=right) for right in (True, False))
    assert wrong.tokens == right.tokens
    assert wrong.histogram == (7, 0, 0)
    assert predict.total([wrong]).accept_length == 1.0


@pytest.mark.parametrize(
    ("tokens", "ours", "served", "drafts"),
    [(8, 7 / 3, 8 / 3, 7 / 3), (7, 3.0, 3.5, 3.0), (6, 2.5, 3.0, 3.0)],
)
def test_three_definitions_of_accept_length(tokens, ours, served, drafts):
    total = predict.predict_all(PAIR, [4], tokens, 2)
    assert total.accept_length == pytest.approx(ours)
    assert total.accept_length_served == pytest.approx(served)
    assert total.accept_length_drafts == pytest.approx(drafts)


def test_total_weighs_requests_by_their_verifications():
    total = predict.predict_all(PAIR, [4, 5], 8, 2)
    assert total.histogram == (1, 0, 3)
    assert total.completion_tokens == 10
    assert total.accept_length == pytest.approx(8 / 4)
    assert total.accept_rate == pytest.approx(6 / 8)


def test_no_verification_has_no_accept_length():
    with pytest.raises(ValueError, match="no verification"):
        predict.predict_all(PAIR, [6], 8, 2)


@pytest.mark.parametrize(("steps", "length"), [(1, 5 / 3), (2, 2.5), (3, 10 / 3)])
def test_expected_accept_length_is_that_of_the_cycle(steps, length):
    assert predict.expected_accept_length(PAIR, steps) == pytest.approx(length)
    assert predict.expected_accept_length(PAIR, steps, right=False) == 1.0


def test_a_long_answer_settles_to_the_expected_length():
    for steps in (1, 2, 3):
        total = predict.predict_all(PAIR, [4], 6001, steps)
        assert total.accept_length == pytest.approx(predict.expected_accept_length(PAIR, steps), abs=2e-3)


@pytest.mark.parametrize(
    ("content", "token"),
    [("a b", 7), ("b", ord("b")), ("a bc", ord("c")), ("é", 0xA9), ("a b\n", 10), (" b", 7)],
)
def test_last_token(content, token):
    assert predict.last_token(PAIR, content) == token


def test_an_empty_prompt_has_no_last_token():
    with pytest.raises(ValueError, match="empty"):
        predict.last_token(PAIR, "")
