"""What aerie_probe.py records, and where it goes. Comes with Aerie's patch set `debug`, goes with it."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path

FIRST = 5  # values shown of a row
FORWARDS = 8
ERRORS = 100  # kinds of failures that are told


class State:
    """The arm, the forward under way and the open file."""

    def __init__(self, environment=os.environ):
        directory = environment.get("EAGLE3_DEBUG_DIR", "")
        self.directory = Path(directory)
        self.on = environment.get("EAGLE3_DEBUG") == "1" and bool(directory)
        self.limit = _number(environment.get("EAGLE3_DEBUG_FORWARDS"), FORWARDS)
        self.started = time.time_ns()
        self.seq = itertools.count()
        self.arm, self.tensors, self.layers = "", False, False
        self.armed = None  # (inode, time of change) of the arm.json that was read last
        self.forward = -1  # of this arm, from 0; the target's
        self.model = None  # "target" or "draft": whose code runs
        self.mode = None
        self.captured = {"target": 0, "draft": 0}  # forwards seen while a graph is captured
        self.known_layers = set()
        self.hooks = []
        self.errors = set()
        self.rank = None
        self.descriptor = None

    def first_rank(self):
        """Whether this is rank 0 of its tensor-parallel group."""
        if self.rank is None:
            try:
                from sglang.srt.distributed import get_tensor_model_parallel_rank

                self.rank = get_tensor_model_parallel_rank()
            except (ImportError, AssertionError):  # groups are not there yet, or this is no server
                return True
        return self.rank == 0

    def begin(self, model, mode, capturing):
        """A forward of the target or of the draft begins."""
        self.model, self.mode = model, mode
        if capturing:
            self.captured[model] += 1
        elif model == "target" and not capture_mode():
            self._look_for_arm()
            self.forward += 1

    def _look_for_arm(self):
        """One stat a forward. A file older than this process armed another one."""
        path = self.directory / "arm.json"
        try:
            status = path.stat()
        except OSError:
            return
        found = (status.st_ino, status.st_mtime_ns)
        if found == self.armed or status.st_mtime_ns < self.started:
            return
        self.armed = found
        wanted = json.loads(path.read_text(encoding="utf-8"))
        if str(wanted["id"]) != self.arm:
            self.arm = str(wanted["id"])
            self.limit = _number(wanted.get("forwards"), FORWARDS)
            self.tensors, self.layers = bool(wanted.get("tensors")), bool(wanted.get("layers"))
            self.forward = -1

    def recording(self):
        """Whether events of the model whose code runs are wanted: of the first forwards, and of the first captures."""
        if capturing():
            return self.captured.get(self.model, 0) <= self.limit
        return not capture_mode() and 0 <= self.forward < self.limit

    def write(self, event, where, x=None, **more):
        """One event; x: the tensor that it shows."""
        graph = capturing()
        line = {
            "v": 1,
            "seq": next(self.seq),
            "t": time.time(),
            "pid": os.getpid(),
            "arm": self.arm,
            "event": event,
            "where": where,
            "model": self.model,
            "forward": self.forward,
            "mode": self.mode,
            "graph_capture": graph or capture_mode(),
            "index": None,
            "layer": None,
        }
        if x is not None:
            line.update(summary(x, values=not graph))
            if self.tensors and not graph:
                line["tensor"] = self._save(x, line["seq"], event)
        line.update(more)
        self._append(json.dumps(line) + "\n")

    def _append(self, text):
        if self.descriptor is None:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self.directory / "events.jsonl"
            self.descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(self.descriptor, text.encode())

    def _save(self, x, seq, event):
        from safetensors.torch import save_file

        name = f"{os.getpid()}-{seq:06d}-{event}.safetensors"
        part = self.directory / f"{name}.part"
        save_file({"x": x.detach().to("cpu", copy=True).contiguous()}, part)
        part.replace(self.directory / name)
        return name

    def failed(self, where, error):
        """Tell a failure once, as an event; never raise."""
        text = f"{type(error).__name__}: {error}"
        if (where, text) in self.errors or len(self.errors) >= ERRORS:
            return
        self.errors.add((where, text))
        try:
            self.write("probe_error", where, error=text)
        except Exception as second:  # nowhere to write: the server's log is left
            print(f"aerie_probe: {text}; {second}", file=sys.stderr, flush=True)


def _number(text, default):
    try:
        return int(text)
    except (TypeError, ValueError):
        return default


def compiling():
    """Whether torch.compile traces this call: nothing in here can be compiled."""
    import torch

    return getattr(torch.compiler, "is_compiling", lambda: False)()


def capturing():
    """Whether a CUDA graph is being captured: reading from the GPU would break it."""
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def capture_mode():
    """Whether the server prepares graphs now, warm-up runs included. 0.5.14 moved the question to another module."""
    for name in ("runner_utils.capture_mode", "cuda_graph_runner"):
        module = sys.modules.get(f"sglang.srt.model_executor.{name}")
        if module is not None and hasattr(module, "get_is_capture_mode"):
            return bool(module.get_is_capture_mode())
    return False


def summary(x, values=True):
    """Shape and type; Frobenius norm and the first values of the first and last row, with one read from the GPU."""
    import torch

    known = {"shape": list(x.shape), "dtype": str(x.dtype).replace("torch.", "")}
    known.update(norm=None, first=None, last=None, tensor=None)
    if not values:
        return known
    if x.numel() == 0:
        return {**known, "norm": 0.0, "first": [], "last": []}
    rows = x.detach().reshape(-1, x.shape[-1])
    norm = torch.linalg.vector_norm(rows, dtype=torch.float32).reshape(1)
    ends = [rows[0, :FIRST].float(), rows[-1, :FIRST].float()]
    read = torch.cat([norm, *ends]).tolist()
    width = ends[0].numel()
    return {**known, "norm": read[0], "first": read[1 : 1 + width], "last": read[1 + width :]}


STATE = State()
