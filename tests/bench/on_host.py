"""Runs on a benchmark host, by its own Python: times of a start, by hand and by systemd. Prints one JSON object.

by-hand INSTANCE   start the recorded server as its user with its own command and environment, until /health
                   answers 200; then end it. Seconds from the start.
road INSTANCE      of the server that runs: seconds from systemd's start of it to the record of its acceptance,
                   and how long the gates' requests took.
"""

import json
import os
import pwd
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

LIMIT_S = 600


def healthy(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=8) as answer:
            return answer.status == 200
    except OSError:
        return False


def by_hand(root):
    deployment = (root / "current").resolve()
    spec = json.loads((deployment / "spec.json").read_text())

    def resolved(text):
        return text.replace("@DEPLOYMENT@", str(deployment))

    command = [resolved(word) for word in spec["command"]]
    port = int(command[command.index("--port") + 1])
    user = pwd.getpwnam(spec["user"])
    began = time.monotonic()
    with (Path("/tmp") / "bench-by-hand.log").open("wb") as log:
        server = subprocess.Popen(
            command,
            env={name: resolved(value) for name, value in spec["environment"].items()},
            cwd=spec["environment"]["HOME"],
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        while not healthy(port):
            if server.poll() is not None or time.monotonic() - began > LIMIT_S:
                sys.exit(f"the server did not come up: exit {server.poll()}; /tmp/bench-by-hand.log")
            time.sleep(0.1)
        return {"seconds": time.monotonic() - began}
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def road(root, unit):
    shown = subprocess.run(
        ["systemctl", "show", "--property=ExecMainStartTimestampMonotonic", "--value", unit],
        capture_output=True,
        text=True,
        check=True,
    )
    started = int(shown.stdout) / 1e6
    offset = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    state = root / "state.json"
    record = json.loads(state.read_text())
    gates = record["history"][0]["gates"]
    return {
        "phase": record["phase"],
        "seconds": state.stat().st_mtime - offset - started,
        "requests": gates["tokens"] / gates["output_tokens_per_second"],
    }


where = Path("/var/lib/sglang") / sys.argv[2]
print(
    json.dumps(by_hand(where) if sys.argv[1] == "by-hand" else road(where, f"sglang-{sys.argv[2]}.service"))
)
