"""How long a change of the server keeps it from answering, by hand and by the road: interleaved pairs on one host.

From the first /health that is not 200 to the next 200, polled on the host's own loopback every 50 ms. By hand is what
people do today: SIGKILL, sleep 2, SIGKILL, sleep 3, start, poll each second. The road changes a setting that needs a
restart (``max_running_requests``, 4 and 3 in turn). The server is idle, and the same in both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import world

SCRIPT = Path(__file__).resolve().parent / "downtime_on_host.py"
PORT = "30000"


class Watch:
    """The poll on the host, in the background; used as a context."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.seconds = 0.0

    def __enter__(self) -> Watch:
        self.process = subprocess.Popen(
            [str(world.TOOL), "exec", self.host, "python3", "-", "watch", PORT],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(SCRIPT.read_text())
        self.process.stdin.close()
        if self.process.stdout.readline() != "watching\n":
            sys.exit("bench: the server does not answer before it is changed")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.process.kill()
            return
        assert self.process.stdout is not None
        told = self.process.stdout.read()
        if self.process.wait(timeout=60) != 0:
            sys.exit("bench: the poll of /health failed")
        self.seconds = json.loads(told)["seconds"]


def measure(host: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each pair. The server runs as accepted before and after."""
    found: dict[str, list[float]] = {"by hand": [], "road": []}
    for number in range(1, rounds + 1):
        world.on_host(host, SCRIPT, "adopt", "default")
        with Watch(host) as poll:
            world.on_host(host, SCRIPT, "by-hand", "default")
        found["by hand"].append(poll.seconds)
        world.on_host(host, SCRIPT, "release", "default")
        limit = json.dumps({"sglang_server_max_running_requests": 3 if number % 2 else 4})
        with Watch(host) as poll:
            world.play("production.yml", (host,), "-e", limit)
        found["road"].append(poll.seconds)
        shown = ", ".join(f"{key} {one[-1]:.2f} s" for key, one in found.items())
        print(f"downtime, round {number}: {shown}", flush=True)
    return found
