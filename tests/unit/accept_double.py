"""A double of an SGLang server for tests. Not SGLang."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

INFO: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "accept" / "server-info.json").read_text()
)


class Double:
    """A double of an SGLang server: a few endpoints with answers that a test decides on. Not SGLang."""

    def __init__(self) -> None:
        self.info: dict[str, tuple[int, Any]] = {"/server_info": (200, INFO["0.5.23-eagle"])}
        self.health = 200
        self.generate: Callable[[dict[str, Any]], tuple[int, Any]] = lambda body: (200, good_answer(body))
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.drip = 0.0
        self.running = self.most_running = 0
        self.lock = threading.Lock()
        double = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path == "/health":
                    self.answer(double.health, None)
                else:
                    self.answer(*double.info.get(self.path, (404, {"detail": "Not Found"})))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with double.lock:
                    double.bodies.append(body)
                    double.keys.add(self.headers.get("Authorization"))
                    double.running += 1
                    double.most_running = max(double.most_running, double.running)
                status, value = double.generate(body)
                with double.lock:
                    double.running -= 1
                self.answer(status, value, double.drip)

            def answer(self, status: int, value: Any, drip: float = 0.0) -> None:
                raw = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                try:
                    for piece in [bytes([byte]) for byte in raw] if drip else [raw]:
                        self.wfile.write(piece)
                        time.sleep(drip)
                except OSError:
                    self.close_connection = True

            def log_message(self, *args: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def good_answer(body: dict[str, Any], verifies: int = 40) -> dict[str, Any]:
    """An answer with 3 steps: 121 tokens; each verify accepts two drafts or none."""
    return {
        "text": "text",
        "output_ids": list(range(121)),
        "meta_info": {
            "completion_tokens": 121,
            "prompt_tokens": len(body["input_ids"]),
            "finish_reason": {"type": "length", "length": 121},
            "spec_verify_ct": verifies,
            "spec_num_correct_drafts": 120 - verifies,
            "spec_num_proposed_drafts": 3 * verifies,
            "spec_correct_drafts_histogram": [verifies - (120 - verifies) // 2, 0, (120 - verifies) // 2],
        },
    }
