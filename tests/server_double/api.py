"""The double's HTTP interface.

With a key in its configuration file it answers 401 to whoever does not send it, except on /health and /health_generate
(SGLang excepts whatever begins with /health: srt/utils/auth.py of 0.5.23).
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

from .answers import answer, server_info
from .asked import KEY, commanded, flag


class Handler(BaseHTTPRequestHandler):
    """``silent``: nothing inside answers any more. ``stopping``: it drains. ``running``: requests at work."""

    protocol_version = "HTTP/1.1"
    silent = False
    stopping = False
    running = 0
    lock = threading.Lock()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in ("/health", "/health_generate"):
            # SGLang generates a token for it, which a dead detokenizer never gives back.
            dead = Handler.stopping or Handler.silent
            time.sleep(float(commanded().get("health_s", 0)))
            self.reply(503 if dead else commanded().get("health", 200), None)
        elif not self.known():
            self.unknown()
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
        if not self.known():
            self.unknown()
            return
        if self.path.partition("?")[0] != "/generate":
            self.reply(200, {})
            return
        with Handler.lock:
            Handler.running += 1
        try:
            self.generate(body)
        finally:
            with Handler.lock:
                Handler.running -= 1

    def generate(self, body: dict[str, Any]) -> None:
        while Handler.silent:
            time.sleep(1)
        how = commanded().get("generate")
        if how == "hang":
            time.sleep(3600)
        if isinstance(how, int):
            self.reply(how, {"error": {"message": "as commanded"}})
            return
        made = answer(body)
        if body.get("stream"):
            self.stream(made)
        else:
            self.reply(200, made)

    def known(self) -> bool:
        """Whether the client sent the key."""
        return not KEY or self.headers.get("Authorization") == f"Bearer {KEY}"

    def unknown(self) -> None:
        self.reply(401, {"error": "Unauthorized"})

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
        raw = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        """Quiet."""
