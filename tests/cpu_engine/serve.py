#!/usr/bin/env python3
"""Start a server for tests without Ansible, on this machine.

    python serve.py PAIR --python /opt/sglang/releases/0.5.23/bin/python [--draft draft-shift+1]

``--python`` has the engine's lock installed (or the kernels on PYTHONPATH). Runs until Ctrl-C; the log goes
to standard output. `Server` is the same for use in tests. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import engine

START_TIMEOUT = 190.0  # seconds; 24 to 31 s on two idle cores, up to 112 s with both busy (measured 2026-11)
STOP_TIMEOUT = 25.0
HEALTH_TIMEOUT = 8.0  # /health generates a token, about 1 s


@dataclass(frozen=True)
class Answer:
    """One generated text. ``histogram``: verifications by accepted drafts, None without speculation."""

    tokens: tuple[int, ...]
    histogram: tuple[int, ...] | None
    finish: str


class Server:
    """A running server as a context manager; entering waits until it is healthy."""

    def __init__(
        self,
        python: Path,
        pair: Path,
        *,
        port: int,
        draft: str | None = "draft",
        steps: int = 3,
        algorithm: str = "EAGLE3",
        dtype: str = "bfloat16",
        log: IO | None = None,
    ) -> None:
        """``draft``: a directory in the pair, None for a server without speculation."""
        arguments = {
            "model-path": str(pair / "target"),
            "host": "127.0.0.1",
            "port": str(port),
            "dtype": dtype,
        }
        arguments |= engine.ARGUMENTS
        if draft is not None:
            arguments |= engine.speculative_arguments(algorithm, str(pair / draft), steps)
        self.command = [str(python), "-m", "sglang.launch_server", *engine.command_line(arguments)]
        self.address = f"http://127.0.0.1:{port}"
        self.steps = steps if draft is not None else 0
        self._log = log
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> Server:
        self.start()
        try:
            self.wait_until_healthy()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Launch; does not wait. Own session, so that Ctrl-C here does not reach the children first."""
        self._process = subprocess.Popen(
            self.command,
            env={**os.environ, **engine.ENVIRONMENT},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_until_healthy(self) -> float:
        """Seconds until /health said 200; RuntimeError if the process ended or it took too long."""
        assert self._process is not None
        started = time.monotonic()
        while time.monotonic() - started < START_TIMEOUT:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with {self._process.returncode}: see its log")
            if self._is_healthy():
                return time.monotonic() - started
            time.sleep(0.5)
        raise RuntimeError(f"not healthy after {START_TIMEOUT:.0f} s: see its log")

    def _is_healthy(self) -> bool:
        """Whether /health answers 200; it refuses connections first, then answers 503."""
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=HEALTH_TIMEOUT) as response:
                return response.status == 200
        except OSError:  # URLError and HTTPError are OSErrors
            return False

    def stop(self) -> int | None:
        """SIGTERM to the launcher, which drains; after a while SIGKILL to the group. Exit status."""
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        return self._process.returncode

    def post(self, path: str, body: dict, timeout: float = 120.0):
        """POST JSON, JSON back."""
        request = urllib.request.Request(
            self.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.load(response)

    def generate(self, texts: list[str], max_new_tokens: int, *, ignore_eos: bool = False) -> list[Answer]:
        """Greedy answers to plain prompts, all in one batch."""
        sampling = {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": ignore_eos}
        raw = self.post("/generate", {"text": texts, "sampling_params": sampling})
        return [self._answer(one) for one in raw]

    def _answer(self, raw: dict) -> Answer:
        meta = raw["meta_info"]
        counts = meta.get("spec_correct_drafts_histogram")
        histogram = None
        if self.steps:
            counts = list(counts or [])
            histogram = tuple(counts + [0] * (self.steps + 1 - len(counts)))
        return Answer(tuple(raw["output_ids"]), histogram, meta["finish_reason"]["type"])


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Serve a clockwork pair on the CPU.")
    parser.add_argument("pair", type=Path)
    parser.add_argument("--python", type=Path, required=True, help="python with the CPU engine installed")
    parser.add_argument("--port", type=int, default=31000)
    parser.add_argument("--draft", default="draft", help="directory in the pair; 'none' for no speculation")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--algorithm", default="EAGLE3")
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args(argv)
    draft = None if options.draft == "none" else options.draft
    server = Server(
        options.python,
        options.pair,
        port=options.port,
        draft=draft,
        steps=options.steps,
        algorithm=options.algorithm,
        dtype=options.dtype,
    )
    with contextlib.suppress(KeyboardInterrupt), server:
        print(f"healthy: {server.address}", flush=True)
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
