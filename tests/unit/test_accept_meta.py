"""Reading answers of every release, and refusing counters that cannot be true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie.accept.meta import Answer, accepted_or_derived, check_speculative, read_answer
from ansible.module_utils.aerie.errors import AerieError

DATA = Path(__file__).parent / "data" / "accept"
META: dict[str, dict[str, Any]] = json.loads((DATA / "meta-by-release.json").read_text())
RUNS: dict[str, list[dict[str, Any]]] = json.loads((DATA / "runs-0.5.17.json").read_text())

CPU_RELEASES = ("0.5.16", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")


def answer_of(meta: dict[str, Any], ids: list[int] | None = None) -> Answer:
    ids = list(range(meta["completion_tokens"])) if ids is None else ids
    return read_answer(0, {"text": "text", "output_ids": ids, "meta_info": meta}, 0.5)


@pytest.mark.parametrize("release", CPU_RELEASES)
def test_captured_answers_of_each_release_read_alike(release: str) -> None:
    answer = answer_of(META[release])
    assert (answer.completion_tokens, answer.verify_ct, answer.accepted_drafts) == (72, 20, 51)
    assert (answer.proposed_drafts, answer.histogram, answer.cut_tokens) == (60, (0, 3, 3, 14), 0)
    check_speculative(answer, steps=3, draft_tokens=4)


def test_plain_server_has_no_counters_and_is_refused_where_speculation_is_expected() -> None:
    answer = answer_of(META["0.5.18-plain"])
    assert answer.verify_ct is None
    with pytest.raises(AerieError) as refused:
        check_speculative(answer, steps=3)
    assert refused.value.kind.code == "accept-no-speculation"


@pytest.mark.parametrize(("run", "cut"), [("right", [4, 2, 2, 3, 0, 0, 0, 5]), ("rand", [0] * 8)])
def test_tokens_cut_at_the_end_of_captured_answers(run: str, cut: list[int]) -> None:
    answers = [answer_of(meta) for meta in RUNS[run]]
    assert [a.cut_tokens for a in answers] == cut
    for answer in answers:
        check_speculative(answer, steps=5, draft_tokens=6)


# Made from the source of the releases (see the README of the data): counters of one answer of 72 tokens in 20 verifies.
BARE = {
    "completion_tokens": 72,
    "prompt_tokens": 3,
    "finish_reason": {"type": "length"},
    "spec_verify_ct": 20,
}
OLD_RELEASES = {
    "0.4.4.post2": BARE,
    "0.5.3": {**BARE, "spec_accept_rate": 0.85, "spec_accept_length": 3.6},
    "0.5.5": {**BARE, "spec_accept_token_num": 51, "spec_draft_token_num": 60},
    "0.5.9": {
        **BARE,
        "spec_accept_token_num": 51,
        "spec_draft_token_num": 60,
        "spec_accept_histogram": [0, 3, 3, 14],
    },
    "0.5.11": {
        **BARE,
        "spec_accepted_drafts": 51,
        "spec_proposed_drafts": 60,
        "spec_accept_histogram": [0, 3, 3, 14],
    },
}


@pytest.mark.parametrize("release", OLD_RELEASES)
def test_made_answers_of_older_releases(release: str) -> None:
    answer = answer_of(OLD_RELEASES[release])
    check_speculative(answer, steps=3, draft_tokens=4)
    assert accepted_or_derived(answer) == 51
    assert (answer.accepted_drafts is None) == (release in ("0.4.4.post2", "0.5.3"))
    assert (answer.histogram is None) == (release in ("0.4.4.post2", "0.5.3", "0.5.5"))


def test_first_releases_return_text_without_ids() -> None:
    answer = read_answer(0, {"text": "some words", "meta_info": BARE}, 0.5)
    assert answer.output_ids is None
    assert answer.text == "some words"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"spec_verify_ct": 0}, "no verify, yet 72 tokens"),
        ({"spec_verify_ct": 10}, "above 3 steps + 1"),
        ({"spec_verify_ct": 72}, "below 1"),
        ({"spec_num_correct_drafts": 61}, "61 drafts accepted in 20 verifies"),
        ({"spec_num_correct_drafts": 50}, "1 tokens more than prefill"),
        ({"spec_num_correct_drafts": 55}, "4 accepted tokens missing"),
        ({"spec_correct_drafts_histogram": [0, 3, 3, 13]}, "adds up to 19 verifies, not 20"),
        ({"spec_correct_drafts_histogram": [1, 2, 3, 14]}, "adds up to 50 accepted drafts, not 51"),
        ({"spec_correct_drafts_histogram": [0, 3, 4, 12, 1]}, "more than 3 accepted drafts"),
        ({"spec_num_proposed_drafts": 80}, "80 drafts proposed in 20 verifies"),
        ({"spec_num_proposed_drafts": 50}, "51 drafts accepted of 50 proposed"),
    ],
)
def test_impossible_counters_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(AerieError) as refused:
        check_speculative(answer_of({**META["0.5.23"], **change}), steps=3, draft_tokens=4)
    assert refused.value.kind.code == "accept-figures-impossible"
    assert says in refused.value.evidence[0]


def test_wrong_step_count_is_noticed_without_server_info() -> None:
    for told in (2, 4):
        with pytest.raises(AerieError) as refused:
            check_speculative(answer_of(META["0.5.23"]), steps=told, draft_tokens=told + 1)
        assert refused.value.kind.code == "accept-figures-impossible"


def test_retracted_request_may_have_one_token_more_for_each_prefill() -> None:
    meta = {**META["0.5.23"], "completion_tokens": 73, "num_retractions": 1}
    check_speculative(answer_of(meta), steps=3, draft_tokens=4)
    with pytest.raises(AerieError):
        check_speculative(answer_of({**meta, "num_retractions": 0}), steps=3, draft_tokens=4)


def test_answer_of_one_token_needs_no_counters() -> None:
    meta = {"completion_tokens": 1, "prompt_tokens": 3, "finish_reason": {"type": "stop", "matched": 2}}
    check_speculative(answer_of(meta), steps=3)


def test_end_of_sequence_inside_a_verify_is_a_cut() -> None:
    meta = {**META["0.5.23"], "completion_tokens": 70, "finish_reason": {"type": "stop", "matched": 2}}
    answer = answer_of(meta)
    check_speculative(answer, steps=3, draft_tokens=4)
    assert answer.cut_tokens == 2


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"text": "x"}, "no meta_info"),
        (["x"], "no meta_info"),
        ({"text": "", "output_ids": [], "meta_info": {**BARE, "completion_tokens": 0}}, "empty"),
        ({"text": "", "output_ids": [], "meta_info": BARE}, "empty"),
        (
            {
                "text": "a",
                "output_ids": [1],
                "meta_info": {**BARE, "finish_reason": {"type": "abort", "message": "no memory"}},
            },
            "aborted it: no memory",
        ),
    ],
)
def test_answers_that_are_none(body: Any, says: str) -> None:
    with pytest.raises(AerieError) as refused:
        read_answer(7, body, 0.1)
    assert refused.value.kind.code == "accept-no-answer"
    assert says in refused.value.evidence[0]
    assert "request 7" in refused.value.what
