"""The processes inside a server, and what their ends do to it."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

from .api import Handler

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
LAUNCHER_ENDS_AFTER_S = 5


def child(title: str) -> int:
    """A process of the server's kind, which dies with its parent."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    rename(title)
    while True:
        time.sleep(3600)


def rename(title: str) -> None:
    """Show this title as name and command line, as setproctitle does."""
    words = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(words[45]), int(words[46])  # arg_start and arg_end of proc(5)
    shown = title.encode()[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, shown, len(shown))
    ctypes.CDLL(None).prctl(PR_SET_NAME, title.encode())


def watch(scheduler: int, detokenizer: int) -> None:
    """A dead scheduler ends the launcher after five seconds, as on the card; a dead detokenizer leaves it silent."""
    while True:
        pid, _ = os.waitpid(-1, 0)
        if pid == detokenizer:
            Handler.silent = True
        if pid == scheduler:
            time.sleep(LAUNCHER_ENDS_AFTER_S)
            os._exit(1)


def leave() -> None:
    """As SGLang drains: /health 503 at once, new requests still taken, out when the last has ended."""
    Handler.stopping = True
    time.sleep(0.2)
    while Handler.running:
        time.sleep(0.05)
    os._exit(0)
