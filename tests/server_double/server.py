"""A start of the double: its log lines, the ways not to survive them, and then HTTP."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import traceback
from http.server import ThreadingHTTPServer

from . import probes
from .api import Handler
from .asked import commanded, flag, pace
from .inside import child, leave, watch


def say(text: str) -> None:
    print(time.strftime("[%Y-%m-%d %H:%M:%S] ") + text, flush=True)


def load() -> tuple[int, int]:
    """Scheduler and detokenizer, when what a start says has been said."""
    wrong, fraction = commanded(), float(flag("--mem-fraction-static", "0.5"))
    say("server_args=ServerArgs(a double, tests/server_double)")
    scheduler, detokenizer = child("sglang::scheduler"), child("sglang::detokenizer")
    say("Init torch distributed begin.")
    say("Load weight begin. avail mem=139.00 GB")
    if wrong.get("at_load") == "crash":
        raise RuntimeError("the double crashes while it loads weights, as commanded")
    if wrong.get("at_load") == "hang":
        time.sleep(3600)
    time.sleep(pace())
    say("Load weight end. type=Double")
    if not 0.001 < fraction < 0.99:
        say("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (made up by the double)")
        raise RuntimeError("Not enough memory. Please try to increase --mem-fraction-static.")
    say("Capture target verify CUDA graph begin. backend=full, bs=[1, 2]")
    if wrong.get("at_graphs") == "crash":
        raise RuntimeError("CUDA out of memory (simulated by the double, in the middle of a graph capture)")
    time.sleep(pace())
    if os.waitpid(scheduler, os.WNOHANG)[0]:
        raise RuntimeError("Rank 0 scheduler died during initialization (exit code: -9).")
    say("Capture target verify CUDA graph end. Time elapsed: 1.00 s.")
    return scheduler, detokenizer


def stop(*_: object) -> None:
    if not commanded().get("deaf"):
        threading.Thread(target=leave).start()


def serve() -> None:
    signal.signal(signal.SIGTERM, stop)
    probes.directory()
    threading.Thread(target=watch, args=load(), daemon=True).start()
    meeting = socket.create_server(
        ("::", int(flag("--nccl-port", "0"))), family=socket.AF_INET6, dualstack_ipv6=True
    )
    with meeting, ThreadingHTTPServer((flag("--host", "127.0.0.1"), int(flag("--port"))), Handler) as server:
        say("The server is fired up and ready to roll!")
        after = commanded().get("after_ready")
        if after is not None:
            threading.Timer(float(after), os.kill, [os.getpid(), signal.SIGKILL]).start()
        server.serve_forever()


def main() -> None:
    """Never returns: what would run this module is not to go on with SGLang's own."""
    try:
        serve()
    except BaseException:
        traceback.print_exc()
    os._exit(1)
