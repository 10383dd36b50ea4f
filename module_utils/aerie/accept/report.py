"""From answers to the figures of a run; pure.

Every figure that cannot be had is None, with the reason in ``unavailable``; every figure that was worked out
from others, because the release has no counter for it, is named in ``derived``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from ..errors import ErrorKind
from .loops import loop_reason
from .meta import NOT_BASELINE, Answer, accepted_or_derived, check_speculative
from .options import MeasureOptions
from .server import ServerSettings
from .statistics import acceptance_by_position, ratio_interval, sum_histograms

DEGENERATE = ErrorKind(
    "accept-output-degenerate",
    "Too many answers are loops. A loop is predicted by any draft, so the accept length would look good "
    "whatever the wiring is.",
)
SAMPLE_TOO_SMALL = ErrorKind(
    "accept-sample-too-small", "Too few tokens or requests were counted to say anything about acceptance."
)

DEGENERATE_SHARE = 0.1
"""Up to this share of answers may loop: they are left out and counted. Above it the run is refused."""
LEAST_REQUESTS = 5
"""A bootstrap over fewer requests has no meaning; only asked for where a floor is to be judged."""
SPECULATIVE_FIGURES = (
    "accept_length",
    "accept_length_interval",
    "accept_length_served",
    "accept_length_uncut",
    "accept_rate",
    "acceptance_by_position",
    "histogram",
    "verify_ct",
    "accepted_drafts",
    "proposed_drafts",
    "tokens_cut",
)


def report(
    answers: Sequence[Answer], options: MeasureOptions, settings: ServerSettings, wall_seconds: float
) -> dict[str, Any]:
    """Check every answer and work out all figures. ``wall_seconds``: from the first request to the last
    answer.
    """
    loops = _loops(answers)
    counted = [a for a in answers if a.index not in loops]
    tokens = sum(a.completion_tokens for a in counted)
    figures: dict[str, Any] = {
        "requests": len(answers),
        "requests_degenerate": len(loops),
        "tokens": tokens,
        "output_tokens_per_second": round(sum(a.completion_tokens for a in answers) / wall_seconds, 2),
        "seconds": round(wall_seconds, 3),
        "retractions": sum(a.retractions for a in answers),
        "unavailable": {},
        "derived": {},
    }
    if settings.source is None:
        figures["unavailable"]["accept_thresholds"] = f"settings unknown: {settings.why_unknown}"
    elif options.speculative and not settings.thresholds:
        figures["unavailable"]["accept_thresholds"] = f"{settings.source} does not name them"
    steps = _fixed_steps(options, settings)
    if options.speculative:
        for answer in answers:
            check_speculative(answer, steps, _draft_tokens(options, settings))
    else:
        _check_baseline(answers)
    _check_size(tokens, counted, options)
    if options.speculative:
        _acceptance(figures, counted, options, settings)
    else:
        for name in SPECULATIVE_FIGURES:
            figures[name] = None
            figures["unavailable"][name] = "the server runs without speculation"
    figures["rows"] = [_row(a, loops.get(a.index)) for a in answers]
    return figures


def _acceptance(
    figures: dict[str, Any], counted: Sequence[Answer], options: MeasureOptions, settings: ServerSettings
) -> None:
    verified = [a for a in counted if a.verify_ct]
    if not verified:
        raise SAMPLE_TOO_SMALL.error(
            "no answer was longer than one token, so nothing was verified",
            evidence=[f"{len(counted)} answers"],
            next="use prompts that are answered in more than a word",
        )
    pairs = [(a.gained, a.verify_ct or 0) for a in verified]
    verifies = sum(v for _, v in pairs)
    interval = ratio_interval(pairs, options.confidence, options.seed)
    figures.update(
        accept_length=round(interval.value, 4),
        accept_length_interval=[round(interval.low, 4), round(interval.high, 4)],
        confidence=options.confidence,
        interval_method=interval.method,
        accept_length_served=round(sum(a.completion_tokens for a in verified) / verifies, 4),
        verify_ct=verifies,
    )
    _drafts(figures, verified, options, settings)
    _positions(figures, verified, _fixed_steps(options, settings))


def _drafts(
    figures: dict[str, Any], verified: Sequence[Answer], options: MeasureOptions, settings: ServerSettings
) -> None:
    counted = all(a.accepted_drafts is not None for a in verified)
    accepted = sum(accepted_or_derived(a) for a in verified)
    figures["accepted_drafts"] = accepted
    if counted:
        figures["accept_length_uncut"] = round(1 + accepted / figures["verify_ct"], 4)
        figures["tokens_cut"] = sum(a.cut_tokens or 0 for a in verified)
    else:
        figures["accept_length_uncut"] = figures["tokens_cut"] = None
        why = "the release counts no accepted drafts"
        figures["unavailable"].update(accept_length_uncut=why, tokens_cut=why)
        figures["derived"]["accepted_drafts"] = "emitted tokens less one for prefill and one for each verify"
    draft_tokens = _draft_tokens(options, settings)
    if settings.adaptive:
        why = "the server varies its number of steps (--speculative-adaptive)"
        figures["unavailable"].update(accept_rate=why, proposed_drafts=why)
        figures["accept_rate"] = figures["proposed_drafts"] = None
    elif draft_tokens is not None or all(a.proposed_drafts for a in verified):
        proposed = (
            figures["verify_ct"] * (draft_tokens - 1)
            if draft_tokens is not None
            else sum(a.proposed_drafts or 0 for a in verified)
        )
        figures["proposed_drafts"] = proposed
        figures["accept_rate"] = round(accepted / proposed, 4)
        if not counted:
            figures["derived"]["accept_rate"] = "from the derived accepted_drafts"
    else:
        why = "neither the release nor num_steps nor /server_info tells how many drafts a verify gets"
        figures["unavailable"].update(accept_rate=why, proposed_drafts=why)
        figures["accept_rate"] = figures["proposed_drafts"] = None


def _positions(figures: dict[str, Any], verified: Sequence[Answer], steps: int | None) -> None:
    histograms = [a.histogram for a in verified if a.histogram is not None]
    if len(histograms) < len(verified):
        why = "the release gives no histogram of accepted drafts (it does from 0.5.9 on)"
        figures["unavailable"].update(histogram=why, acceptance_by_position=why)
        figures["histogram"] = figures["acceptance_by_position"] = None
        return
    width = steps if steps is not None else max(len(h) for h in histograms) - 1
    figures["histogram"] = sum_histograms(histograms, max(width, max(len(h) for h in histograms) - 1))
    figures["acceptance_by_position"] = acceptance_by_position(figures["histogram"])


def _loops(answers: Sequence[Answer]) -> dict[int, str]:
    found = {
        a.index: why
        for a in answers
        if (why := loop_reason(a.output_ids if a.output_ids is not None else a.text.split())) is not None
    }
    if len(found) > DEGENERATE_SHARE * len(answers):
        examples = [
            f"request {a.index}: {found[a.index]}: {_excerpt(a.text)!r}" for a in answers if a.index in found
        ]
        raise DEGENERATE.error(
            f"{len(found)} of {len(answers)} answers are loops",
            evidence=examples[:5],
            next="send chat prompts through the model's template; if it loops still, suspect its weights",
        )
    return found


def _check_baseline(answers: Sequence[Answer]) -> None:
    speculating = next((a for a in answers if a.verify_ct), None)
    if speculating is not None:
        raise NOT_BASELINE.error(
            "the server speculates, though a baseline was expected",
            evidence=[f"request {speculating.index}: spec_verify_ct {speculating.verify_ct}"],
            next="remove speculative-algorithm from the server's configuration, or set speculative: true",
        )


def _check_size(tokens: int, counted: Sequence[Answer], options: MeasureOptions) -> None:
    few = options.min_accept_length is not None and len(counted) < LEAST_REQUESTS
    if tokens >= options.min_tokens and not few:
        return
    raise SAMPLE_TOO_SMALL.error(
        f"{tokens} tokens from {len(counted)} requests are too few to judge by",
        evidence=[
            f"needed: {options.min_tokens} tokens"
            + (f" and {LEAST_REQUESTS} requests" if options.min_accept_length is not None else ""),
            f"answers ended by: {_finishes(counted)}",
        ],
        next="raise num_prompts or max_new_tokens, or use prompts with longer answers",
    )


def _finishes(answers: Sequence[Answer]) -> str:
    kinds = sorted({a.finish for a in answers})
    return ", ".join(f"{kind} {sum(a.finish == kind for a in answers)}" for kind in kinds) or "none"


def _fixed_steps(options: MeasureOptions, settings: ServerSettings) -> int | None:
    if settings.adaptive:
        return None
    return options.num_steps if options.num_steps is not None else settings.steps


def _draft_tokens(options: MeasureOptions, settings: ServerSettings) -> int | None:
    if settings.adaptive:
        return None
    known = options.num_draft_tokens if options.num_draft_tokens is not None else settings.draft_tokens
    steps = options.num_steps if options.num_steps is not None else settings.steps
    topk_one = settings.topk in (None, 1)
    return known if known is not None else (steps + 1 if steps is not None and topk_one else None)


def _row(answer: Answer, loop: str | None) -> dict[str, Any]:
    output = answer.output_ids if answer.output_ids is not None else answer.text
    return {
        "index": answer.index,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "verify_ct": answer.verify_ct,
        "accepted_drafts": answer.accepted_drafts,
        "histogram": list(answer.histogram) if answer.histogram is not None else None,
        "accept_length": round(answer.gained / answer.verify_ct, 4) if answer.verify_ct else None,
        "finish": answer.finish,
        "seconds": round(answer.seconds, 3),
        "degenerate": loop,
        "output_sha256": hashlib.sha256(repr(output).encode()).hexdigest()[:16],
    }


def _excerpt(text: str) -> str:
    return " ".join(text.split())[-80:]
