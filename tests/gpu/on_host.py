#!/usr/bin/env python3
"""Runs on the host, handed over by ssh: start a server by hand, time a start, kill a process and watch what follows.

One JSON line comes back. `kill UNIT VICTIM SECONDS` kills the launcher, scheduler or detokenizer of a unit and watches
until it is healthy again; `restart UNIT` times a start of Aerie's unit; `by-hand UNIT PORT` starts the same command
with the same environment by hand (own port, the release's own tree), `by-hand-stop PORT` ends it; `starts UNIT PORT
COUNT SECONDS WAYS` times several ways to start side by side. Times are seconds from the start to the first 200 of
/health, asked every 50 ms.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

EVERY_S = 0.05
LONGEST_S = 150.0
TITLES = {"scheduler": "sglang::schedul", "detokenizer": "sglang::detoken"}


# What SGLang writes when its launcher has imported everything, its scheduler has, and it serves.
MARKS = {"arguments": "server_args=", "scheduler": "Init torch distributed begin", "fired up": "is fired up"}


def pid_file(port: int) -> Path:
    return Path(f"/run/aerie-by-hand.{port}.pid")


def log_file(port: int) -> Path:
    return Path(f"/var/log/aerie-by-hand.{port}.log")


def marks(log: str, began: float) -> dict[str, float]:
    """Seconds from ``began`` (Unix time) to the first line of each mark since; SGLang writes whole seconds."""
    found: dict[str, float] = {}
    for line in log.splitlines():
        stamp = re.search(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", line)
        name = next((name for name, text in MARKS.items() if text in line), None)
        if stamp and name and name not in found:
            at = time.mktime(time.strptime(stamp.group(1), "%Y-%m-%d %H:%M:%S"))
            if at >= int(began):
                found[name] = round(at - began, 1)
    return found


def shown(unit: str) -> dict[str, str]:
    names = "ActiveState,SubState,MainPID,NRestarts,Result,ControlGroup"
    words = ["systemctl", "show", "-p", names, unit]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return dict(line.partition("=")[::2] for line in text.splitlines())


def members(unit: str) -> list[tuple[int, str]]:
    """(pid, name) of the unit's processes."""
    found = []
    try:
        pids = (Path("/sys/fs/cgroup") / shown(unit)["ControlGroup"].lstrip("/") / "cgroup.procs").read_text()
    except OSError:
        return []
    for pid in map(int, pids.split()):
        try:
            found.append((pid, Path(f"/proc/{pid}/comm").read_text().strip()))
        except OSError:
            continue
    return found


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=3) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def answers(port: int) -> bool:
    """Whether it gives two tokens: a server without its detokenizer is as healthy as before, and silent."""
    body = json.dumps({"text": "def ", "sampling_params": {"max_new_tokens": 2}}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=6) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def until_healthy(port: int, began: float) -> float | None:
    while time.monotonic() - began < LONGEST_S:
        if healthy(port):
            return round(time.monotonic() - began, 3)
        time.sleep(EVERY_S)
    return None


def spec(unit: str) -> dict[str, Any]:
    instance = unit.removeprefix("sglang-").removesuffix(".service")
    return dict(json.loads(Path(f"/var/lib/sglang/{instance}/current/spec.json").read_text()))


def value(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


def port_of(unit: str) -> int:
    return int(value(spec(unit)["command"], "--port"))


def kill(unit: str, victim: str, seconds: float) -> dict[str, Any]:
    """SIGKILL one process of the unit, then watch: which processes are left when, and when it is healthy again."""
    before = shown(unit)
    main = int(before["MainPID"])
    found = [pid for pid, name in members(unit) if name == TITLES.get(victim)]
    pids = [main] if victim == "launcher" else found[:1]
    if not pids or not main:
        return {"error": f"no {victim} in {unit}: {members(unit)}"}
    port, began, moment = port_of(unit), time.monotonic(), time.time()
    os.kill(pids[0], signal.SIGKILL)
    seen: list[dict[str, Any]] = []
    while time.monotonic() - began < seconds:
        now = shown(unit)
        look = {"state": f"{now['ActiveState']}/{now['SubState']}", "processes": len(members(unit))}
        look |= {"restarts": now["NRestarts"]}
        if not seen or {k: v for k, v in seen[-1].items() if k != "s"} != look:
            seen.append({"s": round(time.monotonic() - began, 2), **look})
        if now["MainPID"] not in ("0", str(main)) and healthy(port):
            break
        time.sleep(EVERY_S)
    after = shown(unit)
    return {
        "victim": victim,
        "unit": unit,
        "killed_at": round(moment, 3),
        "seen": seen,
        "restarts": int(after["NRestarts"]) - int(before["NRestarts"]),
        "healthy_again_s": round(time.monotonic() - began, 2) if answers(port) else None,
        "same_launcher": after["MainPID"] == str(main),
    }


def restart(unit: str) -> dict[str, Any]:
    """Stop Aerie's unit, then time its start."""
    subprocess.run(["systemctl", "stop", unit], check=True)
    settle()
    return {"ready_s": until_healthy(port_of(unit), launch(unit))}


def launch(unit: str) -> float:
    """Start a unit; the moment it was asked to. Earlier starts are forgotten: a unit allows three in ten minutes."""
    subprocess.run(["systemctl", "reset-failed", unit], check=False)
    began = time.monotonic()
    subprocess.run(["systemctl", "start", unit], check=True)
    return began


def settle() -> None:
    time.sleep(1.0)


def starts(unit: str, port: int, count: int, seconds: float, ways: list[str]) -> dict[str, Any]:
    """Up to ``count`` rounds of starts at the same moment, so that all that the machine does falls on each alike: by
    the unit and in other ``ways``. Who is first goes round. No round is begun that would not end in time, and the unit
    serves afterwards.

    ways: ``hand``, the release's package as a person starts it; ``tree``, so with the deployment's own copy of it, as
    the unit has it; ``bare``, a unit without a sandbox; ``filter``, ``mounts``, a unit with that part of the sandbox.
    """
    begun, found, longest = time.monotonic(), [], 0.0
    ports = {"unit": port_of(unit), **{way: port + number for number, way in enumerate(ways)}}
    for number in range(count):
        this = time.monotonic()
        if found and this - begun + longest > seconds:
            break
        subprocess.run(["systemctl", "stop", unit], check=True)
        settle()
        moment = time.time()
        began: dict[str, float] = {}
        turn = number % len(ports)
        for way in [*ports][turn:] + [*ports][:turn]:
            began[way] = launch_way(way, unit, ports[way])
        ready = all_healthy(ports, began)
        journal = ["journalctl", "-u", unit, "-o", "cat", "--no-pager", "--since", f"@{int(moment)}"]
        logs = {
            way: log_file(port).read_text(errors="replace") for way, port in ports.items() if way != "unit"
        }
        logs["unit"] = subprocess.run(journal, capture_output=True, text=True, check=False).stdout
        found.append(
            {
                "seconds": ready,
                "first": [*ports][turn],
                "marks": {way: marks(logs[way], moment) for way in ports},
                "processor_s": {way: processor(way, unit, port) for way, port in ports.items()},
                "unit_executed_s": executed(unit, began["unit"]),
            }
        )
        for way in ways:
            stop_way(way, ports[way])
        longest = max(longest, time.monotonic() - this)
    return {"rounds": found}


def executed(unit: str, began: float) -> float:
    """Seconds until systemd ran the server's own command: what comes before it, and its sandbox."""
    words = ["systemctl", "show", "--value", "-p", "ExecMainStartTimestampMonotonic", unit]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return round(int(text) / 1e6 - began, 3)


# Parts of the unit's sandbox, by how the settings begin that make them.
PARTS: dict[str, tuple[str, ...]] = {
    "bare": (),
    "filter": ("NoNewPrivileges", "Capability", "Ambient", "Restrict", "LockPersonality", "SystemCall"),
    "mounts": ("Protect", "Private", "CacheDirectory"),
}


def launch_way(way: str, unit: str, port: int) -> float:
    """Start in one way; the moment it was asked to."""
    if way == "unit":
        return launch(unit)
    if way in ("hand", "tree"):
        return launch_by_hand(unit, port, tree=way == "tree")[0]
    return launch_part(way, unit, port)


def launch_part(way: str, unit: str, port: int) -> float:
    """The deployment's command as a transient unit, with one part of the real unit's sandbox."""
    command, environment = command_of(unit, port, tree=True)
    text = subprocess.run(["systemctl", "cat", unit], capture_output=True, text=True, check=True).stdout
    settings = [line for line in text.splitlines() if line.startswith(PARTS[way]) and "=" in line]
    words = ["systemd-run", "--quiet", f"--unit=aerie-way-{way}", "--uid=sglang", "--gid=sglang", "--collect"]
    log_file(port).unlink(missing_ok=True)
    settings += [
        "TimeoutStopSec=5",
        "UMask=0077",
        f"StandardOutput=file:{log_file(port)}",
        "StandardError=inherit",
    ]
    settings += [f"WorkingDirectory={environment.get('HOME', '/tmp')}"]
    words += [word for line in settings for word in ("-p", line)]
    words += [f"--setenv={name}={text}" for name, text in environment.items()]
    began = time.monotonic()
    subprocess.run([*words, *command], check=True)
    return began


def stop_way(way: str, port: int) -> None:
    if way in ("hand", "tree"):
        by_hand_stop(port)
    else:
        subprocess.run(["systemctl", "stop", f"aerie-way-{way}"], check=False)


def processor(way: str, unit: str, port: int) -> list[float]:
    """Processor seconds of a way's processes so far and of children that have ended: in user mode, in the kernel."""
    if way in ("hand", "tree"):
        session = pid_file(port).read_text()
        stats = [status(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        mine = [one for one in stats if one and one[3] == session]
    else:
        name = unit if way == "unit" else f"aerie-way-{way}.service"
        mine = [one for pid, _ in members(name) if (one := status(str(pid)))]
    tick = os.sysconf("SC_CLK_TCK")
    return [round(sum(int(one[i]) + int(one[i + 2]) for one in mine) / tick, 2) for i in (11, 12)]


def status(pid: str) -> list[str]:
    """The fields of /proc/PID/stat after the name, from the state on; none when it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def all_healthy(ports: dict[str, int], began: dict[str, float]) -> dict[str, float | None]:
    """Seconds until each answered, each asked by a thread of its own, since an answer may take a second."""
    with ThreadPoolExecutor() as pool:
        waiting = {name: pool.submit(until_healthy, port, began[name]) for name, port in ports.items()}
        return {name: one.result() for name, one in waiting.items()}


def command_of(unit: str, port: int, tree: bool) -> tuple[list[str], dict[str, str]]:
    """The unit's own command and environment at another port, with the release's package or (``tree``) the
    deployment's copy of it."""
    made = spec(unit)
    command, environment = list(made["command"]), dict(made["environment"])
    command[command.index("--port") + 1] = str(port)
    if "--nccl-port" in command:
        command[command.index("--nccl-port") + 1] = str(port + 1000)
    home = Path(f"/var/lib/sglang/{unit.removeprefix('sglang-').removesuffix('.service')}/current").resolve()
    if not tree:
        environment.pop("PYTHONPATH", None)
    environment = {name: text.replace("@DEPLOYMENT@", str(home)) for name, text in environment.items()}
    return [word.replace("@DEPLOYMENT@", str(home)) for word in command], environment


def launch_by_hand(unit: str, port: int, tree: bool = False) -> tuple[float, list[str]]:
    """The unit's own command and environment as a person would start it: no unit, no sandbox."""
    command, environment = command_of(unit, port, tree)
    user = pwd.getpwnam("sglang")
    began = time.monotonic()
    with log_file(port).open("wb") as log:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=environment.get("HOME", "/tmp"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
            start_new_session=True,
        )
    pid_file(port).write_text(str(process.pid))
    return began, command


def by_hand(unit: str, port: int) -> dict[str, Any]:
    began, command = launch_by_hand(unit, port)
    return {"ready_s": until_healthy(port, began), "command": " ".join(command)}


def by_hand_stop(port: int) -> dict[str, Any]:
    """SIGTERM to the launcher of the server that was started by hand there; SIGKILL to its session after 20 s."""
    pid = int(pid_file(port).read_text())
    began = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    while time.monotonic() - began < 20 and Path(f"/proc/{pid}/stat").exists():
        if Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z":
            break
        time.sleep(EVERY_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    pid_file(port).unlink()
    return {"stopped_s": round(time.monotonic() - began, 2)}


def main(words: list[str]) -> dict[str, Any]:
    if words[0] == "kill":
        return kill(words[1], words[2], float(words[3]))
    if words[0] == "restart":
        return restart(words[1])
    if words[0] == "by-hand":
        return by_hand(words[1], int(words[2]))
    if words[0] == "starts":
        return starts(words[1], int(words[2]), int(words[3]), float(words[4]), words[5].split(","))
    if words[0] == "by-hand-stop":
        return by_hand_stop(int(words[1]))
    raise SystemExit(f"what is {words}?")


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
