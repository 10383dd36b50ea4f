"""Load on one server at several batch sizes by the release's own ``bench_serving``, warm-up left out.

One child loads tokenizer and generator once (tens of seconds on a busy machine) and then runs every batch size. Before
the load it hands up the prompts' token ids, with which the caller measures acceptance; that pass is the warm-up, too.
"""

from __future__ import annotations

import contextlib
import json
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from ..accept.prompts import PromptSet
from ..errors import AerieError, ErrorKind
from ..release.child import ChildFailed, ChildJob, child_started
from .bench_driver import DRIVER, MARK

BENCH_FAILED = ErrorKind(
    "bench-serving-failed",
    "SGLang's own load generator could not be run, or requests of its load failed, so there is no figure.",
)
BENCH_TIMEOUT = ErrorKind(
    "bench-serving-timeout", "The load did not end within its time: the server is slow, or it hangs."
)

BATCHES_INVALID = ErrorKind(
    "bench-batches-invalid", "A batch size is a number of requests at a time, from 1 up."
)

ROUNDS_PER_BATCH = 3
"""At each batch size at least this many requests a slot, so that the start and the end of the load weigh little."""

MOST_REQUESTS = 10_000
"""A load is made no longer than this many requests, however fast they are answered: each is a row of the result."""


@dataclass(frozen=True)
class BenchJob:
    """What to run. ``timeout`` in seconds for everything; ``user`` None: as the user that runs this.
    ``least_seconds``: how long the load at each batch size lasts at least."""

    url: str
    api_key: str | None
    model_path: str
    python: str
    batch_sizes: Sequence[int]
    max_new_tokens: int
    timeout: float
    user: str | None = None
    pythonpath: str | None = None
    trust_remote_code: bool = False
    chat_template: bool = True
    flush_cache: bool = True
    least_seconds: float = 0.0
    admin_key: str | None = None

    def rounds(self, batch: int, prompts: int) -> int:
        """How often the whole prompt set is sent at a batch size: every prompt equally often."""
        return max(1, math.ceil(ROUNDS_PER_BATCH * batch / prompts))


@dataclass
class Load:
    """What came back. ``batches``: batch, rows (one a request), duration in seconds. ``began``: unix seconds."""

    module: str = ""
    began: float = 0.0
    batches: list[dict[str, Any]] = field(default_factory=list)


def check_batches(batches: Sequence[int]) -> None:
    """Refuse what cannot be measured."""
    if not batches or min(batches) < 1 or len(set(batches)) != len(batches):
        raise BATCHES_INVALID.error(
            f"the batch sizes {list(batches)} cannot be measured",
            next="give different numbers from 1 up: [1, 8]",
        )


def run_load(
    job: BenchJob,
    prompts: PromptSet,
    before: Callable[[list[list[int]]], None],
    say: Callable[[str], None],
) -> Load:
    """Run all batch sizes. ``before`` gets the prompts' token ids and runs to its end before the load begins."""
    payload = {
        "mark": MARK,
        "url": job.url,
        "api_key": job.api_key,
        "admin_key": job.admin_key or job.api_key,
        "model_path": job.model_path,
        "trust_remote_code": job.trust_remote_code,
        "max_new_tokens": job.max_new_tokens,
        "flush_cache": job.flush_cache,
        "least_seconds": job.least_seconds,
        "most_requests": MOST_REQUESTS,
        "runs": [[batch, job.rounds(batch, len(prompts.prompts))] for batch in job.batch_sizes],
        "conversations": prompts.conversations() if job.chat_template else None,
        "texts": None if job.chat_template else prompts.texts(),
    }
    deadline = time.monotonic() + job.timeout
    child_job = ChildJob(job.python, job.user, job.pythonpath, job.timeout)
    try:
        with child_started(child_job, DRIVER) as (child, _):
            assert child.stdin is not None
            assert child.stdout is not None
            lines = _reader(child.stdout)
            child.stdin.write(json.dumps(payload).encode() + b"\n")
            child.stdin.flush()
            return _talk(job, child.stdin, lines, deadline, before, say)
    except (ChildFailed, OSError) as error:
        raise _failed(job, [str(error) or type(error).__name__]) from error


def _reader(stream: BinaryIO | Any) -> queue.Queue[bytes | None]:
    """Lines of the child as they come; None at the end."""
    lines: queue.Queue[bytes | None] = queue.Queue()

    def read() -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in stream:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _talk(
    job: BenchJob,
    stdin: Any,
    lines: queue.Queue[bytes | None],
    deadline: float,
    before: Callable[[list[list[int]]], None],
    say: Callable[[str], None],
) -> Load:
    load, said = Load(), ""
    while True:
        try:
            raw = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty as error:
            raise BENCH_TIMEOUT.error(
                f"the load was not done after {job.timeout:.0f} s",
                evidence=[f"{len(load.batches)} of {len(job.batch_sizes)} batch sizes were measured"],
                next="raise timeout, or lower num_prompts, max_new_tokens, least_seconds or the batch sizes",
            ) from error
        if raw is None:
            raise _failed(job, [f"it ended without a result; last words: {said or 'none'}"])
        text = raw.decode("utf-8", "replace").strip()
        if not text.startswith(MARK):
            said = text or said
            continue
        event = json.loads(text[len(MARK) :])
        if "ids" in event:
            load.module = str(event["module"])
            before(event["ids"])
            load.began = time.time()
            deadline = max(deadline, time.monotonic() + job.timeout / 2)
            stdin.write(b"go\n")
            stdin.flush()
        elif "progress" in event:
            at = event["progress"]
            say(f"load at batch {at['batch']}: {at['done']} of {at['total']} requests")
        elif "batch" in event:
            load.batches.append(event["batch"])
        elif "error" in event:
            raise _failed(job, [_short(str(event["error"]), job.api_key, job.admin_key)])
        elif event.get("done"):
            return load


def _failed(job: BenchJob, evidence: list[str]) -> AerieError:
    return BENCH_FAILED.error(
        f"bench_serving of {job.python} brought no figures for {job.url}",
        evidence=[*evidence, f"user {job.user or 'unchanged'}"],
        next="read the server's journal for this moment; a server that was killed for memory is the usual cause",
    )


def _short(text: str, *secrets: str | None) -> str:
    flat = " ".join(text.split())[-500:]
    for secret in filter(None, secrets):
        flat = flat.replace(secret, "********")
    return flat
