"""Runs on a benchmark host, by its own Python: how long a server does not answer. Prints one JSON object.

watch PORT             wait for the first /health that is not 200, then for the next 200: the seconds between
by-hand INSTANCE       what people do today, on a server that was started by hand: SIGKILL, sleep 2, SIGKILL,
                       sleep 3, start, poll /health each second
adopt INSTANCE         stop the unit and start the same server by hand, so that by-hand has one to replace
release INSTANCE       end the server that was started by hand, and start the unit again
"""

import contextlib
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
PID = Path("/tmp/bench-downtime.pid")


def healthy(port, timeout=8):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=timeout) as answer:
            return answer.status == 200
    except OSError:
        return False


def until(wanted, port, pause):
    """Seconds (monotonic) at which /health first was as wanted."""
    deadline = time.monotonic() + LIMIT_S
    while healthy(port) != wanted:
        if time.monotonic() > deadline:
            sys.exit(f"/health was not {wanted} for {LIMIT_S} s")
        time.sleep(pause)
    return time.monotonic()


def watch(port):
    until(True, port, 0.05)
    print("watching", flush=True)
    down = until(False, port, 0.05)
    return {"seconds": until(True, port, 0.05) - down}


def recorded(root):
    deployment = (root / "current").resolve()
    spec = json.loads((deployment / "spec.json").read_text())

    def resolved(text):
        return text.replace("@DEPLOYMENT@", str(deployment))

    command = [resolved(word) for word in spec["command"]]
    environment = {name: resolved(value) for name, value in spec["environment"].items()}
    return command, environment, pwd.getpwnam(spec["user"]), int(command[command.index("--port") + 1])


def start(root):
    command, environment, user, port = recorded(root)
    with Path("/tmp/bench-downtime.log").open("ab") as log:
        server = subprocess.Popen(
            command, env=environment, cwd=environment["HOME"], user=user.pw_uid, group=user.pw_gid,
            extra_groups=[], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    PID.write_text(str(server.pid))
    return port


def kill():
    with contextlib.suppress(ProcessLookupError):
        os.killpg(int(PID.read_text()), signal.SIGKILL)


def by_hand(root):
    kill()
    time.sleep(2)
    kill()
    time.sleep(3)
    port = start(root)
    until(True, port, 1.0)
    return {}


def adopt(root, unit):
    subprocess.run(["systemctl", "stop", unit], check=True)
    until(True, start(root), 0.5)
    return {}


def release(root, unit):
    kill()
    port = recorded(root)[3]
    while healthy(port, 1):
        time.sleep(0.1)
    time.sleep(1)
    subprocess.run(["systemctl", "start", unit], check=True)
    until(True, port, 0.5)
    return {}


what, name = sys.argv[1:3]
place = Path("/var/lib/sglang") / name
if what == "watch":
    result = watch(int(name))
elif what == "by-hand":
    result = by_hand(place)
else:
    result = {"adopt": adopt, "release": release}[what](place, f"sglang-{name}.service")
print(json.dumps(result))
