"""A small file that says how far a measurement is, for whoever shows it while the module is silent."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


class ProgressFile:
    """Appends one JSON line at most each second, and one for the last answer.

    Each line has ``text`` (for a person), ``done``, ``total`` and ``accept_length`` so far (null without
    speculation); the first also has ``pid``. A line is one write in append mode, so a reader sees it whole or not
    at all. A file that cannot be written is no reason to fail a measurement; it is then left alone.
    """

    def __init__(self, path: Path | None, total: int, interval: float = 1.0) -> None:
        self._path, self._total, self._interval = path, total, interval
        self._written = float("-inf")
        self._gained = self._verifies = self._done = 0

    def begin(self, text: str) -> None:
        """The first line: what is being done before the first answer."""
        self._write({"text": text, "pid": os.getpid()})

    def add(self, gained: int, verifies: int) -> None:
        """One more answer: tokens that verifies gained, and verifies (0 without speculation)."""
        self._done += 1
        if verifies:
            self._gained += gained
            self._verifies += verifies
        now = time.monotonic()
        if self._done == self._total or now - self._written >= self._interval:
            self._written = now
            length = f", accept length {self._length():.2f}" if self._verifies else ""
            self._write({"text": f"{self._done} of {self._total} answers{length}"})

    def say(self, text: str) -> None:
        """Something else than answers: a line as it is."""
        self._write({"text": text})

    def reached(self, name: str) -> None:
        """How far it is, for a program."""
        self._write({"reached": name})

    def _length(self) -> float | None:
        return round(self._gained / self._verifies, 3) if self._verifies else None

    def _write(self, line: dict[str, object]) -> None:
        if self._path is None:
            return
        line.update(done=self._done, total=self._total, accept_length=self._length())
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(handle, (json.dumps(line) + "\n").encode())
            finally:
                os.close(handle)
        except OSError:
            self._path = None
