"""One measurement from end to end: ask the server about itself; send the prompts, report, judge."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..errors import AerieError
from .client import TIMED_OUT, Client, Timed, explain_timeout, generate_all
from .gate import judge
from .meta import Answer, check_speculative, read_answer
from .options import MeasureOptions, check_floor
from .progress import ProgressFile
from .report import report
from .server import ServerSettings, check_settings, check_thresholds, server_settings

_SETTINGS_TIMEOUT = 20.0


class Refused(Exception):
    """A run whose figures are known but not good enough: the error, and the figures to return with it."""

    def __init__(self, error: AerieError, figures: dict[str, Any]) -> None:
        super().__init__(error.what)
        self.error = error
        self.figures = figures


def inspect_server(client: Client, options: MeasureOptions) -> ServerSettings:
    """What the server says about itself; refuses settings with which nothing can be judged. Sends no prompt."""
    settings = server_settings(client, min(_SETTINGS_TIMEOUT, options.timeout))
    if options.speculative:
        check_thresholds(settings)
        check_settings(settings, options.num_steps, options.num_draft_tokens)
        if not settings.adaptive:
            check_floor(options.min_accept_length, options.num_steps or settings.steps)
    return settings


def measure(
    client: Client,
    prompts: Sequence[Sequence[int]],
    options: MeasureOptions,
    settings: ServerSettings,
    progress: ProgressFile | None = None,
) -> dict[str, Any]:
    """Figures of a run that passed. Raises `AerieError`, or `Refused` when the floor was not cleared."""
    deadline = time.monotonic() + options.timeout
    start = time.monotonic()
    answers = _ask(client, prompts, options, deadline, progress)
    figures = report(answers, options, settings, time.monotonic() - start)
    figures["server"] = {
        "release": settings.version,
        "algorithm": settings.algorithm,
        "num_steps": options.num_steps if options.num_steps is not None else settings.steps,
        "num_draft_tokens": settings.draft_tokens,
        "topk": settings.topk,
    }
    if settings.source is None:
        for name in ("release", "algorithm", "topk"):
            figures["unavailable"][f"server.{name}"] = str(settings.why_unknown)
    figures["min_accept_length"] = options.min_accept_length
    try:
        figures["reasons"] = judge(figures, options.min_accept_length, options.checks)
    except AerieError as error:
        figures.update(passed=False, reasons=[error.what])
        raise Refused(error, figures) from error
    figures["soak_requests"] = _soak(client, prompts, options)
    if figures["soak_requests"]:
        figures["reasons"].append(f"soak: {figures['soak_requests']} requests answered in all")
    figures["passed"] = True
    return figures


def _soak(client: Client, prompts: Sequence[Sequence[int]], options: MeasureOptions) -> int:
    """Send the prompts again until ``soak_requests`` are answered in all; every answer must be whole.

    A server that was started on what SIGKILL left behind can answer a hundred requests and then hang (sglang #22779).
    Repeated prompts say nothing about the accept length, so they are not measured. Returns the number, 0 for no soak.
    """
    more = options.soak_requests - len(prompts)
    if options.soak_requests and more > 0:
        generate_all(
            client,
            [_request(prompts[number % len(prompts)], options) for number in range(more)],
            concurrency=options.concurrency,
            request_timeout=options.request_timeout,
            deadline=time.monotonic() + options.soak_timeout,
            on_answer=lambda timed: _check_soaked(timed, len(prompts)),
        )
    return max(options.soak_requests, len(prompts)) if options.soak_requests else 0


def _check_soaked(timed: Timed, before: int) -> None:
    read_answer(before + timed.index, timed.body, timed.seconds)


def _ask(
    client: Client,
    prompts: Sequence[Sequence[int]],
    options: MeasureOptions,
    deadline: float,
    progress: ProgressFile | None,
) -> list[Answer]:
    answers: list[Answer] = []

    def on_answer(timed: Timed) -> None:
        answer = read_answer(timed.index, timed.body, timed.seconds)
        if options.speculative:
            check_speculative(answer, None)  # a server without a draft is found at its first answer
        answers.append(answer)
        if progress is not None:
            progress.add(answer.gained, answer.verify_ct or 0)

    try:
        generate_all(
            client,
            [_request(ids, options) for ids in prompts],
            concurrency=options.concurrency,
            request_timeout=options.request_timeout,
            deadline=deadline,
            on_answer=on_answer,
        )
    except AerieError as error:
        if error.kind is TIMED_OUT:
            raise explain_timeout(client, error) from error
        raise
    return sorted(answers, key=lambda answer: answer.index)


def _request(ids: Sequence[int], options: MeasureOptions) -> dict[str, Any]:
    return {
        "input_ids": list(ids),
        "sampling_params": {"temperature": options.temperature, "max_new_tokens": options.max_new_tokens},
    }
