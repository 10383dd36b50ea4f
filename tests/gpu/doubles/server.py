"""A double of SGLang's launch_server for a quick rehearsal: HTTP, processes, log lines and probes' files. Not SGLang.

`server.pth` puts it in the place of the module that `python -m sglang.launch_server` names, inside the release's own
environment; installation, patches, rules and the deployed tree stay those of the real release. It starts in three
seconds, so that all steps of a plan can be rehearsed on two cores. What it answers is made up: a draft is accepted as
often as its folder's name says (ACCEPTED), and the states that reach it are the reference's or noise.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import socket
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import setproctitle

WORDS = sys.orig_argv[sys.orig_argv.index("sglang.launch_server") + 1 :]
# Chance that a drafted token is accepted, by the draft's folder.
ACCEPTED = {"right": 0.8, "none": 0.8, "off-by-one": 0.76, "shifted": 0.72, "deep": 0.5, "shallow": 0.4,
            "fc-reversed": 0.4, "random": 0.02}  # fmt: skip
RIGHT = ("right", "none", "fc-reversed", "random")
REFERENCE = Path("/srv/models/reference.safetensors")


def flag(name: str, otherwise: str = "") -> str:
    """The word after an option on the command line."""
    return WORDS[WORDS.index(name) + 1] if name in WORDS else otherwise


STEPS = int(flag("--speculative-num-steps", "0"))
DRAFT = flag("--speculative-draft-model-path")
KIND = Path(os.path.realpath(f"{DRAFT}/model.safetensors")).parent.name.removeprefix("draft-")


def say(text: str) -> None:
    print(time.strftime("[%Y-%m-%d %H:%M:%S] ") + text, flush=True)


def child(title: str) -> int:
    """A process of the server's kind, which dies with its parent."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    setproctitle.setproctitle(title)
    while True:
        time.sleep(3600)


def drafted(rng: random.Random, tokens: int) -> list[int]:
    """How many drafts each verify accepted, until there are ``tokens`` tokens; the first one comes from the prefill."""
    found, made = [], 1
    while made < tokens:
        accepted = 0
        while accepted < STEPS and rng.random() < ACCEPTED.get(KIND, 0.8):
            accepted += 1
        found.append(accepted)
        made += accepted + 1
    return found


def answer(body: dict[str, Any]) -> dict[str, Any]:
    began = time.time()
    parameters = body.get("sampling_params") or {}
    tokens = int(parameters.get("max_new_tokens", 16))
    asked = body.get("input_ids") or body.get("text") or ""
    rng = random.Random(str(asked))
    ids = [rng.randrange(10, 4000) for _ in range(tokens)]
    meta: dict[str, Any] = {
        "id": f"{rng.random()}",
        "prompt_tokens": max(1, len(asked)),
        "completion_tokens": tokens,
        "cached_tokens": 0,
        "finish_reason": {"type": "length", "length": tokens},
        "request_received_ts": began,
        "prefill_finished_time": began + 0.003,
    }
    probe(body.get("input_ids"))
    if not STEPS:
        time.sleep(0.003 + tokens * 0.0012)
    else:
        found = drafted(rng, tokens)
        histogram = [found.count(n) for n in range(STEPS + 1)]
        time.sleep(0.003 + len(found) * (0.0014 + 0.0001 * STEPS))
        cycles(found)
        meta |= {
            "spec_verify_ct": len(found),
            "spec_num_correct_drafts": sum(found),
            "spec_num_proposed_drafts": STEPS * len(found),
            "spec_correct_drafts_histogram": histogram,
            "spec_accept_length": (tokens - 1) / max(1, len(found)),
        }
    meta["e2e_latency"] = time.time() - began
    text = " ".join(f"word{one}" for one in ids)
    return {"text": text, "output_ids": ids, "meta_info": meta}


def cycles(found: list[int]) -> None:
    """What the timers of profile mode would write."""
    directory = os.environ.get("AERIE_PROFILE_DIR")
    if not directory:
        return
    Path(directory).mkdir(mode=0o700, exist_ok=True)
    now = time.time()
    with Path(directory, "cycles.jsonl").open("a") as file:
        for accepted in found:
            parts = {"draft_ms": 0.5, "verify_ms": 0.8 + random.random() / 10, "extend_ms": 0.2}
            line = {"v": 1, "t": now, "batch": 1, "accepted": accepted + 1, "cycle_ms": 1.7, **parts}
            file.write(json.dumps({**line, "clock": "monotonic", "worker": "v2"}) + "\n")


def probe(ids: list[int] | None) -> None:
    """What the probes of debug mode would write for the prompt that they were armed for."""
    directory = Path(os.environ.get("EAGLE3_DEBUG_DIR", ""))
    if not os.environ.get("EAGLE3_DEBUG") or not ids:
        return
    directory.mkdir(mode=0o700, exist_ok=True)
    arm: dict[str, Any] = {}
    if (directory / "arm.json").exists():
        arm = json.loads((directory / "arm.json").read_text())
    states = states_of(len(ids))
    with (directory / "events.jsonl").open("a") as file:
        for kind, index, layer, tensor in states:
            name = None
            if arm.get("tensors"):
                name = f"{arm.get('id', '')}-{kind}-{index}.safetensors"
                save(directory / name, tensor, len(ids))
            shape = [len(ids), len(tensor) // 4 // len(ids)]
            line = {"v": 1, "t": time.time(), "pid": os.getpid(), "arm": arm.get("id", ""), "event": kind,
                    "where": "double", "forward": 0, "mode": "extend", "graph_capture": False, "index": index,
                    "layer": layer, "shape": shape, "dtype": "bfloat16", "norm": 1.0, "tensor": name}  # fmt: skip
            file.write(json.dumps(line) + "\n")


def states_of(rows: int) -> list[tuple[str, int | None, int | None, bytes]]:
    """Kind, index, loop index and float32 bytes of what a forward of the reference's prompt hands to the draft."""
    raw = REFERENCE.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    layers = sorted(int(name[6:]) for name in header if name.startswith("layer_"))
    found, segments = [], []
    for index, number in enumerate(layers):
        entry = header[f"layer_{number}"]
        begin, end = entry["data_offsets"]
        width = entry["shape"][1]
        tensor = data[begin:end] if entry["shape"][0] == rows and KIND in RIGHT else noise(rows, width)
        segments.append((tensor, width))
        found.append(("aux_capture", index, number + 1, tensor))
    joined = b"".join(
        tensor[row * width * 4 : (row + 1) * width * 4] for row in range(rows) for tensor, width in segments
    )
    return [*found, ("draft_input", None, None, joined)]


def noise(rows: int, width: int) -> bytes:
    rng = random.Random(rows)
    return struct.pack(f"<{rows * width}f", *(rng.gauss(0, 1) for _ in range(rows * width)))


def save(path: Path, tensor: bytes, rows: int) -> None:
    shape = [rows, len(tensor) // 4 // rows]
    header = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, len(tensor)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + tensor)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    silent = False
    stopping = False
    running = 0
    lock = threading.Lock()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in ("/health", "/health_generate"):
            # SGLang generates a token for it, which a dead detokenizer never gives back.
            self.reply(503 if Handler.stopping or Handler.silent else 200, {})
        elif path in ("/server_info", "/get_server_info"):
            self.reply(200, server_info())
        elif path == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": flag("--model-path")}]})
        elif path == "/flush_cache":
            self.reply(200, {})
        else:
            self.reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        if self.path.partition("?")[0] != "/generate":
            self.reply(200, {})
            return
        with Handler.lock:
            Handler.running += 1
        try:
            while Handler.silent:
                time.sleep(1)
            made = answer(body)
            if body.get("stream"):
                self.stream(made)
            else:
                self.reply(200, made)
        finally:
            with Handler.lock:
                Handler.running -= 1

    def stream(self, made: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        whole, words = made["meta_info"]["completion_tokens"], made["text"].split(" ")
        for count in sorted({1, (whole + 1) // 2, whole}):
            part = {
                "text": " ".join(words[:count]),
                "meta_info": {**made["meta_info"], "completion_tokens": count},
            }
            self.wfile.write(f"data: {json.dumps(part)}\n\n".encode())
            self.wfile.flush()
            time.sleep(0.01)
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def reply(self, status: int, value: Any) -> None:
        raw = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        """Quiet."""


def server_info() -> dict[str, Any]:
    def number(name: str) -> int | None:
        return int(flag(f"--speculative-{name}", "0")) or None

    return {
        "version": "0.5.23",
        "model_path": flag("--model-path"),
        "speculative_algorithm": flag("--speculative-algorithm") or None,
        "speculative_num_steps": number("num-steps"),
        "speculative_eagle_topk": number("eagle-topk"),
        "speculative_num_draft_tokens": number("num-draft-tokens"),
        "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0,
        "speculative_adaptive": False,
        "max_total_num_tokens": 65536,
        "internal_states": [{"avg_spec_accept_length": 3.0 if STEPS else None}],
    }


def leave(*_: object) -> None:
    """As SGLang drains: /health 503 at once, out when the last request has ended."""
    Handler.stopping = True

    def end() -> None:
        time.sleep(0.3)
        while Handler.running:
            time.sleep(0.05)
        os._exit(0)

    threading.Thread(target=end).start()


def watch(scheduler: int, detokenizer: int) -> None:
    """A dead scheduler ends the launcher after five seconds, as on the card; a dead detokenizer leaves it silent."""
    while True:
        pid, _ = os.waitpid(-1, 0)
        if pid == detokenizer:
            Handler.silent = True
        if pid == scheduler:
            time.sleep(5)
            os._exit(1)


def load() -> tuple[int, int]:
    fraction = float(flag("--mem-fraction-static", "0.5"))
    say("server_args=ServerArgs(a double, tests/gpu/doubles/server.py)")
    scheduler, detokenizer = child("sglang::scheduler"), child("sglang::detokenizer")
    say("Init torch distributed begin.")
    say("Load weight begin. avail mem=139.00 GB")
    time.sleep(1)
    say("Load weight end. type=Double")
    if not 0.001 < fraction < 0.99:
        say("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (made up by the double)")
        say("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
        os._exit(1)
    say("Capture target verify CUDA graph begin. backend=full, bs=[1, 2]")
    time.sleep(1)
    if os.waitpid(scheduler, os.WNOHANG)[0]:
        say("Rank 0 scheduler died during initialization (exit code: -9).")
        os._exit(1)
    say("Capture target verify CUDA graph end. Time elapsed: 1.00 s.")
    return scheduler, detokenizer


def main() -> None:
    signal.signal(signal.SIGTERM, leave)
    if os.environ.get("EAGLE3_DEBUG"):
        Path(os.environ["EAGLE3_DEBUG_DIR"]).mkdir(mode=0o700, exist_ok=True)
    children = load()
    threading.Thread(target=watch, args=children, daemon=True).start()
    meeting = socket.create_server(
        ("::", int(flag("--nccl-port", "0"))), family=socket.AF_INET6, dualstack_ipv6=True
    )
    with meeting, ThreadingHTTPServer((flag("--host", "127.0.0.1"), int(flag("--port"))), Handler) as server:
        say("The server is fired up and ready to roll!")
        server.serve_forever()
    os._exit(0)


main()
