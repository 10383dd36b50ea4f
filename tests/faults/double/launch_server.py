"""A double of SGLang's launch_server: HTTP that answers like 0.5.23 and misbehaves on command. Not SGLang.

It starts in a fraction of a second and needs no torch, so that the roads around a server can be driven many times. What
it does wrong it reads from /srv/double/misbehaviour.json, at its start and at each request:

    {"only": "production" | "debug" | "baseline",   which mode the rest is about; every one without it
     "pid": 4711,                       which process alone it is about
     "at_load": "crash" | "hang",       rc 1 with a traceback; never listens
     "at_graphs": "crash",              rc 1 in the middle of a graph capture's log lines (simulated: no GPU, no graphs)
     "after_ready": 1.5,                SIGKILL to itself so many seconds after it began to answer
     "health": 503,                     what /health answers
     "generate": "garbage" | "empty" | "hang" | 500,
     "accept": 0,                       drafts accepted per verify, 0 to 3; 2 without it
     "drain": 5, "deaf": true}          seconds that a request in flight takes to drain; ignores SIGTERM

With a key in its configuration file it answers 401 to whoever does not send it, except on /health and /health_generate
(SGLang excepts whatever begins with /health: srt/utils/auth.py of 0.5.23).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

COMMANDS = Path("/srv/double/misbehaviour.json")
ARGUMENTS = dict(pairwise(sys.argv[1:]))
# The key that clients must send, from where Aerie keeps it: as with SGLang, HTTP 401 without it.
KEY = json.loads(Path(ARGUMENTS["--config"]).read_text())["api-key"] if "--config" in ARGUMENTS else ""
STEPS = int(ARGUMENTS.get("--speculative-num-steps", "0"))
# Debug mode is the one that turns CUDA graphs off.
GRAPHS_OFF = any("cuda-graph" in word for word in sys.argv)
MODE = "debug" if GRAPHS_OFF else "production" if STEPS else "baseline"


def commanded() -> dict[str, Any]:
    """What it is to do wrong now."""
    try:
        given: dict[str, Any] = json.loads(COMMANDS.read_text())
    except (OSError, ValueError):
        return {}
    meant = given.get("only") in (None, MODE) and given.get("pid") in (None, os.getpid())
    return given if meant else {}


def say(text: str) -> None:
    print(text, flush=True)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stopping = False
    running = 0
    lock = threading.Lock()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in ("/health", "/health_generate"):
            self.answer(503 if Handler.stopping else commanded().get("health", 200), None)
        elif self.known() and path == "/server_info":
            self.answer(200, server_info())
        elif self.known():
            self.answer(404, {"detail": "Not Found"})
        else:
            self.unknown()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.known():
            self.unknown()
            return
        with Handler.lock:
            Handler.running += 1
        try:
            self.generate(body)
        finally:
            with Handler.lock:
                Handler.running -= 1

    def known(self) -> bool:
        """Whether the client sent the key."""
        return not KEY or self.headers.get("Authorization") == f"Bearer {KEY}"

    def unknown(self) -> None:
        self.answer(401, {"error": "Unauthorized"})

    def generate(self, body: dict[str, Any]) -> None:
        wrong = commanded()
        how = wrong.get("generate")
        time.sleep(float(wrong.get("drain", 0.01)))
        if how == "hang":
            time.sleep(3600)
        if isinstance(how, int):
            self.answer(how, {"error": {"message": "as commanded"}})
            return
        self.answer(200, answer_to(body, how, int(wrong.get("accept", 2))))

    def answer(self, status: int, value: Any) -> None:
        raw = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        """Quiet."""


def answer_to(body: dict[str, Any], how: str | None, accepted: int) -> dict[str, Any]:
    """An answer of /generate. Each verify gains ``accepted`` drafts and one more token."""
    count = int(body["sampling_params"]["max_new_tokens"])
    seed = sum(body.get("input_ids") or [1])
    ids = [7, 8] * (count // 2) if how == "garbage" else [(seed + 37 * i) % 30011 for i in range(count)]
    meta: dict[str, Any] = {
        "completion_tokens": 0 if how == "empty" else count,
        "prompt_tokens": len(body.get("input_ids") or [1]),
        "finish_reason": {"type": "length", "length": count},
    }
    if STEPS:
        verifies, rest = divmod(count - 1, accepted + 1)
        histogram = [0] * (STEPS + 1)
        histogram[accepted] = verifies
        if rest:
            histogram[rest - 1] += 1
            verifies += 1
        correct = sum(number * times for number, times in enumerate(histogram))
        meta |= {
            "spec_verify_ct": verifies,
            "spec_num_correct_drafts": correct,
            "spec_num_proposed_drafts": STEPS * verifies,
            "spec_correct_drafts_histogram": histogram,
        }
    empty = how == "empty"
    return {"text": "" if empty else "a text", "output_ids": [] if empty else ids, "meta_info": meta}


def server_info() -> dict[str, Any]:
    """The fields of /server_info that anybody reads."""

    def number(name: str) -> int | None:
        text = ARGUMENTS.get(f"--speculative-{name}")
        return int(text) if text else None

    return {
        "version": "0.5.23",
        "speculative_algorithm": ARGUMENTS.get("--speculative-algorithm"),
        "speculative_num_steps": number("num-steps"),
        "speculative_eagle_topk": number("eagle-topk"),
        "speculative_num_draft_tokens": number("num-draft-tokens"),
        "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0,
        "speculative_adaptive": False,
        "internal_states": [{"avg_spec_accept_length": 3.0 if STEPS else None}],
    }


def stop(*_: object) -> None:
    """As SGLang drains: /health 503 at once, new requests still taken, out when the last has ended."""
    if commanded().get("deaf"):
        return
    Handler.stopping = True

    def leave() -> None:
        time.sleep(0.2)
        while Handler.running:
            time.sleep(0.05)
        os._exit(0)

    threading.Thread(target=leave).start()


def load() -> None:
    """The log lines of a start, and the ways not to survive it."""
    wrong = commanded()
    say("Init parallel begin")
    say("Load weight begin. avail mem=1.00 GB")
    if wrong.get("at_load") == "crash":
        raise RuntimeError("the double crashes while it loads weights, as commanded")
    if wrong.get("at_load") == "hang":
        time.sleep(3600)
    say("Load weight end. type=Double")
    if wrong.get("at_graphs") == "crash":
        say("Capture cuda graph begin.")
        raise RuntimeError("CUDA out of memory (simulated by the double, in the middle of a graph capture)")
    say("max_total_num_tokens=4096")


def main() -> None:
    signal.signal(signal.SIGTERM, stop)
    load()
    meeting = socket.create_server(
        ("::", int(ARGUMENTS["--nccl-port"])), family=socket.AF_INET6, dualstack_ipv6=True
    )
    with meeting, ThreadingHTTPServer((ARGUMENTS["--host"], int(ARGUMENTS["--port"])), Handler) as server:
        say("The server is fired up and ready to roll!")
        after = commanded().get("after_ready")
        if after is not None:
            threading.Timer(float(after), os.kill, [os.getpid(), signal.SIGKILL]).start()
        server.serve_forever()


if __name__ == "__main__":
    main()
