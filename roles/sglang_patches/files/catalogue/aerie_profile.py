"""How long a decode cycle spends in drafting, verifying and draft-extending.

Comes with Aerie's patch set `profile`, goes with it. On with AERIE_PROFILE_DIR; tensor-parallel rank 0 only.
One JSON line a cycle in `cycles.jsonl` there, at most AERIE_PROFILE_CYCLES (200000).

A phase is one call of a worker's function: `aerie_phase = phase("draft", batch)` is its first statement, and
CPython drops that local when the call ends. Phases of a GPU are timed with CUDA events on the stream that the
worker uses, so they measure the GPU's time also with overlap scheduling and with CUDA graphs, which are
launched from these functions. Nothing waits for the GPU: a cycle is written when its events are done, as a
rule one cycle later. On the CPU the clock is monotonic.

cycle_ms is from the start of a cycle to the start of the next, null when a prefill lies between or nothing
followed. accepted counts the tokens that the batch gained, the target's own one included.
"""

from __future__ import annotations

import collections
import json
import os
import sys
import time
from pathlib import Path

CYCLES = 200_000
WAITING = 256  # cycles whose events are not done; more are dropped
PHASES = ("draft", "verify", "extend")


def phase(name, batch=None, accepted=None):
    """Begin a phase of the current cycle; it ends when the returned object is dropped."""
    if not STATE.on:
        return None
    try:
        return STATE.begin(name, batch, accepted)
    except Exception as error:
        STATE.failed(error)
        return None


def gained(accepted):
    """Tokens that the cycle gained: a tensor per request, or what `verify` of the workers up to 0.5.12 returned."""
    if STATE.on:
        try:
            STATE.gain(accepted)
        except Exception as error:
            STATE.failed(error)


def prefill():
    """A prefill runs: no cycle goes on through it."""
    if STATE.on:
        try:
            STATE.interrupt()
        except Exception as error:
            STATE.failed(error)


class Monotonic:
    """The CPU's clock; an instant is known at once."""

    name = "monotonic"

    def mark(self):
        return time.monotonic()

    def done(self, instant):
        return True

    def between(self, first, last):
        return (last - first) * 1000

    def release(self, instants):
        """Nothing to reuse."""


class CudaEvents:
    """Events on the current stream, read when the GPU has passed them and used again then."""

    name = "cuda_event"

    def __init__(self, torch):
        self.torch = torch
        self.free = []

    def mark(self):
        event = self.free.pop() if self.free else self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def done(self, instant):
        return instant.query()

    def between(self, first, last):
        return first.elapsed_time(last)

    def release(self, instants):
        self.free += instants


class Cycle:
    """One round of draft, verify and extend. spans: (phase, its first instant, its last, the phase it ran inside)."""

    def __init__(self, batch, worker, start):
        self.batch, self.worker, self.start, self.next = batch, worker, start, None
        self.t = time.time()
        self.spans = []
        self.names = set()
        self.accepted = None


class Phase:
    """Ends when it is dropped."""

    def __init__(self, state, cycle, name, parent):
        self.state, self.cycle, self.name, self.parent = state, cycle, name, parent
        self.start = cycle.start if not cycle.names else state.clock.mark()
        cycle.names.add(name)

    def __del__(self):
        try:
            self.cycle.spans.append((self.name, self.start, self.state.clock.mark(), self.parent))
            if self.state.inside and self.state.inside[-1] == self.name:
                self.state.inside.pop()
        except Exception as error:
            self.state.failed(error)


class State:
    """The cycle under way and those whose events are not done yet."""

    def __init__(self, environment=os.environ):
        directory = environment.get("AERIE_PROFILE_DIR", "")
        self.directory = Path(directory)
        self.on = bool(directory)
        self.left = int(environment.get("AERIE_PROFILE_CYCLES") or CYCLES)
        self.clock = None
        self.cycle = None
        self.inside = []
        self.waiting = collections.deque(maxlen=WAITING)
        self.rank = None
        self.descriptor = None
        self.complained = False

    def ready(self):
        """Whether this process measures, decided at its first phase."""
        import torch

        if self.clock is None:
            self.rank = _rank()
            self.clock = CudaEvents(torch) if torch.cuda.is_available() else Monotonic()
            self.on = self.rank == 0
        capturing = self.clock.name == "cuda_event" and torch.cuda.is_current_stream_capturing()
        return self.on and not capturing

    def begin(self, name, batch, accepted):
        if not self.ready():
            return None
        if self.cycle is None or (name == "draft" and self.cycle.names) or name in self.cycle.names:
            size = _size(batch)
            if size == 0:  # nothing runs but what the other ranks need
                return None
            start = self.clock.mark()
            self.close(start)
            self.inside.clear()
            self.cycle = Cycle(size, _worker(), start)
        if accepted is not None:
            self.gain(accepted)
        begun = Phase(self, self.cycle, name, self.inside[-1] if self.inside else None)
        self.inside.append(name)
        return begun

    def gain(self, accepted):
        if self.cycle is None:
            return
        if hasattr(accepted, "sum"):  # a tensor; v2 counts the target's own token in it
            # A copy that nothing waits for; it is there when the events after it are done.
            self.cycle.accepted = (
                accepted.to("cpu", non_blocking=True) if accepted.is_cuda else accepted.clone()
            )
            return
        for attribute in _V1_ACCEPTED:
            counts = getattr(accepted, attribute, None)
            if counts is not None:
                self.cycle.accepted = [sum(counts), len(counts)]

    def close(self, following=None):
        """The cycle is over; write what the GPU is through with."""
        if self.cycle is not None:
            self.cycle.next = following
            self.waiting.append(self.cycle)
            self.cycle = None
        while self.waiting and self.is_done(self.waiting[0]):
            self.write(self.waiting.popleft())

    def interrupt(self):
        if self.clock is not None:
            self.close()

    def is_done(self, cycle):
        last = [cycle.next] if cycle.next is not None else []
        return all(self.clock.done(instant) for instant in [*last, *(end for _, _, end, _ in cycle.spans)])

    def write(self, cycle):
        if self.left <= 0:
            self.on = False
            return
        self.left -= 1
        spent = dict.fromkeys(PHASES, 0.0)
        for name, first, last, parent in cycle.spans:
            took = self.clock.between(first, last)
            spent[name] += took
            if parent is not None:
                spent[parent] -= took
        whole = self.clock.between(cycle.start, cycle.next) if cycle.next is not None else None
        line = {"v": 1, "t": cycle.t, "batch": cycle.batch}
        line.update({f"{name}_ms": round(spent[name], 4) for name in PHASES})
        line.update(cycle_ms=None if whole is None else round(whole, 4))
        line.update(accepted=None if cycle.accepted is None else _total(cycle.accepted))
        line.update(clock=self.clock.name, worker=cycle.worker)
        self.append(line)
        # The next cycle still needs its own start.
        begun = [first for _, first, _, _ in cycle.spans if first is not cycle.start]
        self.clock.release([cycle.start, *begun, *(last for _, _, last, _ in cycle.spans)])

    def append(self, line):
        if self.descriptor is None:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self.directory / "cycles.jsonl"
            self.descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(self.descriptor, (json.dumps(line) + "\n").encode())

    def failed(self, error):
        """Say it once, stop measuring, never reach the server."""
        self.on = False
        if self.complained:
            return
        self.complained = True
        text = f"{type(error).__name__}: {error}"
        try:
            self.append({"v": 1, "t": time.time(), "event": "probe_error", "error": text})
        except Exception as second:
            print(f"aerie_profile: {text}; {second}", file=sys.stderr, flush=True)


# Accepted drafts per request, without the target's own token, by release: to 0.5.10.post1, 0.5.11, 0.5.12.
_V1_ACCEPTED = (
    "accept_length_per_req_cpu",
    "num_accepted_drafts_per_req_cpu",
    "num_correct_drafts_per_req_cpu",
)


def _total(counts):
    return int(sum(counts.tolist() if hasattr(counts, "tolist") else counts))


def _rank():
    try:
        from sglang.srt.distributed import get_tensor_model_parallel_rank

        return get_tensor_model_parallel_rank()
    except (ImportError, AssertionError):
        return 0


def _size(batch):
    lengths = getattr(batch, "seq_lens", None)
    return 0 if lengths is None else len(lengths)


def _worker():
    """v1 or v2, by the file whose function begins the cycle."""
    frame = sys._getframe()
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    return "v2" if frame is not None and "_v2" in frame.f_code.co_filename else "v1"


STATE = State()
