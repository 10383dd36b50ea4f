"""Reading one answer of POST /generate, whatever the release calls its figures.

Names of the counters in ``meta_info`` (shared facts: releases 0.4.4.post2 to 0.5.23 were read, 0.5.16 to
0.5.23 run):

=================== ====================================================================================
release             what it gives
=================== ====================================================================================
0.4.4.post2-0.5.2   ``spec_verify_ct`` only; the first of them return no ``output_ids`` either
0.5.3-0.5.4.post3   and ``spec_accept_rate``, ``spec_accept_length``
0.5.5-0.5.10.post1  and ``spec_accept_token_num``, ``spec_draft_token_num``;
                    ``spec_accept_histogram`` from 0.5.9
0.5.11-0.5.20       ``spec_accepted_drafts``, ``spec_proposed_drafts``, ``spec_accept_histogram``
0.5.12 and later    ``spec_num_correct_drafts``, ``spec_num_proposed_drafts``,
                    ``spec_correct_drafts_histogram``
=================== ====================================================================================

What the counters mean at the end of an answer. A verify emits its accepted drafts and one more token. When
the answer ends inside a verify (max_new_tokens, end of sequence), the rest is cut off. ``completion_tokens``
counts what was emitted. The counters of 0.5.13 and later (worker v2) count the whole verify, so ``1 +
verifies + accepted drafts`` exceeds ``completion_tokens`` by the cut tokens, at most the number of steps;
seen on 0.5.17: 45 verifies, 158 accepted, 200 tokens, 4 cut. Worker v1 cuts before it counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import AerieError, ErrorKind

NO_ANSWER = ErrorKind(
    "accept-no-answer",
    "The server finished a request without text, or aborted it, or answered in a form that is not "
    "/generate's.",
)
NO_FIGURES = ErrorKind(
    "accept-no-speculation",
    "Speculation was expected, but the answers carry no speculative counters: the server runs without a "
    "draft.",
)
NOT_BASELINE = ErrorKind(
    "accept-speculation-unexpected",
    "A server without speculation was expected, but its answers carry speculative counters.",
)
IMPOSSIBLE = ErrorKind(
    "accept-figures-impossible",
    "The counters contradict each other or the number of steps. Either the step count that was told is not "
    "the server's, or its counters cannot be trusted; a figure made from them would be wrong.",
)

_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
_PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")


@dataclass(frozen=True)
class Answer:
    """One finished request. Counters that the release does not give are None."""

    index: int
    prompt_tokens: int
    completion_tokens: int
    finish: str
    output_ids: tuple[int, ...] | None
    text: str
    seconds: float
    retractions: int
    verify_ct: int | None
    accepted_drafts: int | None
    proposed_drafts: int | None
    histogram: tuple[int, ...] | None

    @property
    def gained(self) -> int:
        """Tokens that verifies emitted: all but the first, which comes from prefill."""
        return self.completion_tokens - 1

    @property
    def cut_tokens(self) -> int | None:
        """Accepted tokens that the end of the answer cut off; None without counters."""
        if self.verify_ct is None or self.accepted_drafts is None:
            return None
        return 1 + self.retractions + self.verify_ct + self.accepted_drafts - self.completion_tokens


def read_answer(index: int, body: Any, seconds: float) -> Answer:
    """Take one answer of /generate apart. Refuses aborted and empty answers."""
    meta = body.get("meta_info") if isinstance(body, Mapping) else None
    if not isinstance(meta, Mapping):
        raise _no_answer(index, "the answer has no meta_info; is this SGLang's own /generate?")
    finish, message = _finish(meta.get("finish_reason"))
    if finish in ("abort", "error"):
        raise _no_answer(index, f"the server aborted it: {message or 'no reason given'}")
    completion = _count(meta, "completion_tokens")
    text = body.get("text")
    ids = body.get("output_ids", body.get("token_ids"))
    ids = tuple(ids) if isinstance(ids, list) and all(isinstance(i, int) for i in ids) else None
    text = text if isinstance(text, str) else ""
    if not completion or not (ids or text):
        raise _no_answer(index, f"the answer is empty (finish reason: {finish})")
    verify = _count(meta, "spec_verify_ct")
    return Answer(
        index=index,
        prompt_tokens=_count(meta, "prompt_tokens") or 0,
        completion_tokens=completion,
        finish=finish,
        output_ids=ids,
        text=text,
        seconds=seconds,
        retractions=_count(meta, "num_retractions") or 0,
        verify_ct=verify,
        accepted_drafts=_first_count(meta, _ACCEPTED),
        proposed_drafts=_first_count(meta, _PROPOSED),
        histogram=_first_histogram(meta, _HISTOGRAM),
    )


def check_speculative(answer: Answer, steps: int | None, draft_tokens: int | None = None) -> None:
    """Refuse counters that cannot be true. ``steps`` None: unknown or varied by the server, so there is no
    upper bound.
    """
    if answer.verify_ct is None:
        if answer.completion_tokens == 1:
            return  # ended with prefill's token: nothing to verify, and newer releases then send no counters
        raise NO_FIGURES.error(
            f"request {answer.index} has no speculative counters",
            evidence=[f"{answer.completion_tokens} tokens, no spec_verify_ct in meta_info"],
            next="look for speculative-algorithm in the server's configuration, or set speculative: false",
        )
    wrong = impossible_reason(answer, steps) or _proposal_contradiction(answer, steps, draft_tokens)
    if wrong is not None:
        raise IMPOSSIBLE.error(
            f"the counters of request {answer.index} cannot be true",
            evidence=[
                wrong,
                f"tokens {answer.completion_tokens}, verifies {answer.verify_ct}, "
                f"accepted {answer.accepted_drafts}, "
                f"histogram {list(answer.histogram or ()) or None}, steps {steps}",
            ],
            next="compare num_steps with the server's --speculative-num-steps; if equal, report the release",
        )


def impossible_reason(answer: Answer, steps: int | None) -> str | None:
    """The contradiction among one answer's counters, in words, or None."""
    verify, gained = answer.verify_ct or 0, answer.gained
    if verify == 0:
        return f"no verify, yet {answer.completion_tokens} tokens" if gained > 0 else None
    if gained < verify:
        return f"accept length {gained / verify:.3f} is below 1: every verify emits a token"
    if steps is not None and gained - answer.retractions > verify * (steps + 1):
        return f"accept length {gained / verify:.3f} is above {steps} steps + 1"
    return _counter_contradiction(answer, verify, steps) or _histogram_contradiction(answer, verify, steps)


def _counter_contradiction(answer: Answer, verify: int, steps: int | None) -> str | None:
    accepted, cut = answer.accepted_drafts, answer.cut_tokens
    if accepted is None or cut is None:
        return None
    if steps is not None and accepted > verify * steps:
        return f"{accepted} drafts accepted in {verify} verifies of {steps} steps"
    if answer.proposed_drafts is not None and accepted > answer.proposed_drafts:
        return f"{accepted} drafts accepted of {answer.proposed_drafts} proposed"
    if cut < 0:
        return f"{-cut} tokens more than prefill, verifies and accepted drafts account for"
    if steps is not None and cut > steps + answer.retractions * (steps + 1):
        return f"{cut} accepted tokens missing from the answer; its end can cut at most {steps}"
    return None


def _histogram_contradiction(answer: Answer, verify: int, steps: int | None) -> str | None:
    histogram = answer.histogram
    if histogram is None:
        return None
    if sum(histogram) != verify:
        return f"the histogram adds up to {sum(histogram)} verifies, not {verify}"
    if steps is not None and any(histogram[steps + 1 :]):
        return f"the histogram counts verifies with more than {steps} accepted drafts"
    drafts = sum(k * n for k, n in enumerate(histogram))
    if answer.accepted_drafts is not None and drafts != answer.accepted_drafts:
        return f"the histogram adds up to {drafts} accepted drafts, not {answer.accepted_drafts}"
    return None


def _proposal_contradiction(answer: Answer, steps: int | None, draft_tokens: int | None) -> str | None:
    """A chain proposes one draft a step; a tree's proposals were counted differently before 0.5.6, so it is
    left out.
    """
    verify, proposed = answer.verify_ct or 0, answer.proposed_drafts
    if steps is None or draft_tokens != steps + 1 or proposed is None or proposed == verify * steps:
        return None
    return f"{proposed} drafts proposed in {verify} verifies: that is not {steps} a verify"


def accepted_or_derived(answer: Answer) -> int:
    """Accepted drafts: the counter, or what the tokens show.

    Releases without a counter (to 0.5.4.post3) ran worker v1, which cuts before it counts; every verify
    emits one token that is not a draft, so the accepted drafts are the emitted tokens less one a verify. A
    final verify that is cut after a draft counts that draft as its one other token, as v1's own counter
    does.
    """
    if answer.accepted_drafts is not None:
        return answer.accepted_drafts
    return max(answer.gained - answer.retractions - (answer.verify_ct or 0), 0)


def _finish(reason: Any) -> tuple[str, str]:
    if isinstance(reason, Mapping):
        return str(reason.get("type", "unknown")), str(reason.get("message", ""))
    return (str(reason) if reason is not None else "unknown"), ""


def _count(meta: Mapping[str, Any], name: str) -> int | None:
    value = meta.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _first_count(meta: Mapping[str, Any], names: Sequence[str]) -> int | None:
    return next((v for v in (_count(meta, n) for n in names) if v is not None), None)


def _first_histogram(meta: Mapping[str, Any], names: Sequence[str]) -> tuple[int, ...] | None:
    for name in names:
        value = meta.get(name)
        if isinstance(value, list) and value and all(isinstance(n, int) and n >= 0 for n in value):
            return tuple(value)
    return None


def _no_answer(index: int, why: str) -> AerieError:
    return NO_ANSWER.error(
        f"request {index} brought no usable answer",
        evidence=[why],
        next="read the server's log for this moment; a full memory or a short context are usual causes",
    )
