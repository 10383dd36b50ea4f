"""A torch trace of a few decode cycles of a running server: its own load, ``/start_profile``, the files of all ranks.

Fields that every release has are sent: ``output_dir``, ``num_steps``, ``activities``, and ``with_stack`` and
``record_shapes``, which those without them (up to 0.4.6.post3) leave out of account. Up to 0.4.6.post5 the server does
not make the directory, so it is made here. Whether the request is answered when the trace has begun (0.5.23) or is done
(0.4.4) does not matter: what counts is a file of each rank that can be read to its end.
"""

from __future__ import annotations

import gzip
import json
import os
import pwd
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..accept.client import HttpClient, generate_all
from ..errors import AerieError, ErrorKind
from .trace import rank_figures, rank_of

TRACE_MISSING = ErrorKind(
    "trace-missing",
    "The server was asked for a torch trace and wrote none that can be read, in its time: the profiler of this release "
    "or of its torch does not work here, the disk is full, or the load ended too early.",
)
TRACE_REFUSED = ErrorKind(
    "trace-refused",
    "The server did not begin a torch trace: a trace runs already, or the key is not the administrator's.",
)

PREFIX, SUFFIX = "trace-", ".trace.json.gz"
LARGEST = 2 << 30
"""Bytes of JSON that one rank's trace may have; more would take this host's memory."""
QUIET_S = 20.0


@dataclass(frozen=True)
class TraceJob:
    """What to trace. ``steps``: decode cycles; ``ranks``: files to wait for, None if the server does not tell."""

    events: Path
    batch: int
    steps: int
    max_new_tokens: int
    timeout: float
    ranks: int | None
    user: str | None = None


@dataclass
class Load:
    """Requests in flight, in a thread of their own."""

    failure: list[AerieError] = field(default_factory=list)
    thread: threading.Thread | None = None

    def begin(self, client: HttpClient, texts: Sequence[str], job: TraceJob) -> None:
        """Send ``batch`` requests that do not end by themselves."""
        sampling = {"temperature": 0, "max_new_tokens": job.max_new_tokens, "ignore_eos": True}
        bodies = [
            {"text": texts[number % len(texts)], "sampling_params": sampling} for number in range(job.batch)
        ]

        def work() -> None:
            try:
                generate_all(
                    client,
                    bodies,
                    concurrency=job.batch,
                    request_timeout=job.timeout,
                    deadline=time.monotonic() + job.timeout,
                    on_answer=lambda _: None,
                )
            except AerieError as error:
                self.failure.append(error)

        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()

    @property
    def running(self) -> bool:
        """Whether requests are still answered."""
        return self.thread is not None and self.thread.is_alive()

    def check(self) -> None:
        """Raise what ended the load."""
        if self.failure:
            raise self.failure[0]


def make_directory(events: Path, user: str | None) -> Path:
    """A new directory in the timers' own, for the service user; those of earlier traces go.

    The timers' directory belongs to the service user, so nothing in it is followed or believed.
    """
    place = events / f"{PREFIX}{time.time_ns():x}"
    handle = os.open(events, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        for name in os.listdir(handle):  # noqa: PTH208 (of what is open, not of a path)
            if name.startswith(PREFIX):
                shutil.rmtree(f"/proc/self/fd/{handle}/{name}", ignore_errors=True)
        os.mkdir(place.name, 0o700, dir_fd=handle)
        if user is not None:
            owner = pwd.getpwnam(user)
            os.chown(place.name, owner.pw_uid, owner.pw_gid, dir_fd=handle, follow_symlinks=False)
    finally:
        os.close(handle)
    return place


def run_trace(
    client: HttpClient, admin: HttpClient, job: TraceJob, texts: Sequence[str], say: Callable[[str], None]
) -> tuple[Path, list[dict[str, Any]]]:
    """The directory with the traces, and each rank's figures. Raises what the server or the load raised.

    ``admin`` has the key for /start_profile: where a server has two, neither opens the other's endpoints.
    """
    deadline = time.monotonic() + job.timeout
    place = make_directory(job.events, job.user)
    load = Load()
    say(f"{job.batch} requests for the trace")
    since = _size(job.events)
    load.begin(client, texts, job)
    _until_decoding(job, since, load, deadline)
    status, answer = admin.ask(
        "/start_profile",
        {
            "output_dir": str(place),
            "num_steps": job.steps,
            "activities": ["CPU", "GPU"],
            "with_stack": False,
            "record_shapes": False,
        },
        max(1.0, deadline - time.monotonic()),
    )
    if status != 200:
        raise TRACE_REFUSED.error(
            f"POST /start_profile was answered with HTTP {status}",
            evidence=[answer],
            next="run the playbook again; it starts the server anew, which ends a trace that runs",
        )
    say(f"tracing {job.steps} cycles")
    return place, _figures(admin, job, place, load, deadline)


def _size(events: Path) -> int:
    try:
        return (events / "cycles.jsonl").stat().st_size
    except FileNotFoundError:
        return 0


def _until_decoding(job: TraceJob, since: int, load: Load, deadline: float) -> None:
    """Wait until the timers have seen a cycle of the whole batch, so that no prefill is in the trace."""
    while load.running and time.monotonic() < deadline:
        if any(size == job.batch for size in _batches(job.events, since)):
            return
        time.sleep(0.05)
    load.check()
    raise TRACE_MISSING.error(
        f"the load ended before {job.batch} requests were decoded at once",
        evidence=[f"{job.max_new_tokens} tokens a request"],
        next="raise sglang_tune_max_new_tokens",
    )


def _batches(events: Path, since: int) -> list[int]:
    try:
        with (events / "cycles.jsonl").open("rb") as file:
            file.seek(since)
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(int(json.loads(line)["batch"]))
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _figures(
    admin: HttpClient, job: TraceJob, place: Path, load: Load, deadline: float
) -> list[dict[str, Any]]:
    """Each rank's figures, when its file is whole. Where the load ended before the trace did, end the trace too."""
    found: dict[str, dict[str, Any]] = {}
    sizes: dict[str, int] = {}
    changed = ended = time.monotonic()
    stopped = False
    while (now := time.monotonic()) < deadline:
        before, sizes = sizes, {path.name: path.stat().st_size for path in place.glob("*" + SUFFIX)}
        changed = changed if sizes == before else now
        # A file grows under its own name, so it is whole when its last block is there.
        for name in sorted(sizes.keys() - found.keys()):
            text = read_whole(place / name, job) if sizes[name] == before.get(name) else None
            if text is not None:
                found[name] = rank_figures(rank_of(name), events_of(text, name))
        if found and len(found) >= (job.ranks or len(sizes)) and (job.ranks or now - changed > QUIET_S):
            return [found[name] for name in sorted(found)]
        if load.running:
            ended = now
        load.check()
        if not stopped and not sizes and now - ended > QUIET_S:
            admin.ask("/stop_profile", {}, 60.0)  # fewer cycles than asked for are a trace too
            stopped = True
        time.sleep(0.5)
    raise TRACE_MISSING.error(
        f"whole traces of {len(found)} of {job.ranks or 'all'} ranks after {job.timeout:.0f} s",
        evidence=[f"{name}: {size} bytes" for name, size in sorted(sizes.items())] or [f"{place} is empty"],
        next="read the server's journal for lines of its profiler; the timers' figures do not need a trace",
    )


def read_whole(path: Path, job: TraceJob) -> bytes | None:
    """The file's JSON, or None while it is still being written."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as raw, gzip.open(raw, "rb") as file:
            text = file.read(LARGEST + 1)
    except (EOFError, OSError, zlib.error):
        return None
    if len(text) > LARGEST:
        raise TRACE_MISSING.error(
            f"the trace {path.name} is too large to be read here",
            next=f"trace fewer cycles than {job.steps}: sglang_tune_trace_steps",
        )
    return text


def events_of(text: bytes, name: str) -> list[Mapping[str, Any]]:
    """The ``traceEvents`` of one file."""
    try:
        events = json.loads(text)["traceEvents"]
        return [event for event in events if isinstance(event, Mapping)]
    except (ValueError, KeyError, TypeError) as error:
        raise TRACE_MISSING.error(
            f"the trace {name} is no trace: {type(error).__name__}",
            next="read the server's journal for lines of its profiler",
        ) from error
