"""What a run on a GPU machine leaves behind: what the host shows after each step, and the record of all steps."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

STATE = Path(os.environ.get("AERIE_GPU_STATE", "/opt/aerie-gpu"))
RUN = STATE / "run"
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# The most that the lender of the machine brings back in one file.
LARGEST = 15 << 20
UNIT = "sglang-default.service"
# A rehearsal on a host without a GPU serves another release, at another address, with settings of its own; the card is
# the driver's double then, and what only a real card can show is left out and says so.
REHEARSAL = bool(os.environ.get("AERIE_GPU_REHEARSAL"))
RELEASE = os.environ.get("AERIE_GPU_RELEASE", "0.5.17")
ADDRESS = os.environ.get("AERIE_GPU_ADDRESS", "127.0.0.1")
# With two cards: the one that side instances are put on (inventory-apart).
SIDE_CARD = os.environ.get("AERIE_GPU_SIDE_CARD", "")
ALSO = tuple(filter(None, os.environ.get("AERIE_GPU_ALSO", "").split(":")))
PROPERTIES = (
    *(
        "ActiveState",
        "SubState",
        "Result",
        "UnitFileState",
        "MainPID",
        "NRestarts",
        "MemoryCurrent",
        "TasksCurrent",
    ),
    *("ExecMainStartTimestamp", "ActiveEnterTimestamp", "DevicePolicy", "NoNewPrivileges", "ProtectSystem"),
)


def environment() -> dict[str, str]:
    path = f"{STATE}/bin:{STATE}/controller/bin:{os.environ['PATH']}"
    return {
        **os.environ,
        "PATH": path,
        "HOME": os.environ.get("HOME", "/root"),
        "LC_ALL": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        # Named, since Ansible passes over an ansible.cfg in a directory that everyone may write to.
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        **kept_connections(),
    }


def kept_connections() -> dict[str, str]:
    """Ansible names a kept ssh connection after the host alone: two rehearsals at once would share one host."""
    if not REHEARSAL:
        return {}
    place = Path(f"/tmp/aerie-rehearsal-{hashlib.sha1(str(STATE).encode()).hexdigest()[:8]}")
    place.mkdir(mode=0o700, exist_ok=True)
    return {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(place)}


def ssh(command: str, seconds: float = 30) -> str:
    """Output of a shell command in the host, whatever its exit status."""
    words = ["ssh", "-F", str(STATE / "ssh_config"), "-o", "ConnectTimeout=5", "gpu", command]
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env=environment(),
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return "(no answer in time)"
    return (done.stdout + done.stderr).strip()


def observe(name: str) -> dict[str, Any]:
    """What the host shows after a step. Whole texts go into files, figures into the record."""
    texts = {
        "unit.txt": f"systemctl cat {UNIT}",
        "show.txt": f"systemctl show {UNIT}",
        "security.txt": f"systemd-analyze security --no-pager {UNIT}",
        "journal.txt": f"journalctl --no-pager -o short-precise -u {UNIT} | tail -n 600",
        "state.json": "cat /var/lib/sglang/default/state.json",
        "nvidia-smi.txt": "PATH=$PATH:/usr/local/nvidia/bin nvidia-smi",
        "processes.txt": "ps -eo pid,ppid,user,rss,etimes,args | grep -i '[s]glang' | cut -c1-200",
        "versions.txt": "readlink -f /opt/sglang/releases/*; du -sm /opt/sglang /var/lib/sglang /var/cache/sglang",
    }
    found = {}
    for file, command in texts.items():
        found[file] = ssh(command)
        (RUN / f"{name}.{file}").write_text(found[file] + "\n")
    shown = dict(line.partition("=")[::2] for line in found["show.txt"].splitlines() if "=" in line)
    exposure = re.search(r"exposure level for \S+: ([0-9.]+)", found["security.txt"])
    try:
        state = json.loads(found["state.json"])
    except ValueError:
        state = None
    return {
        "unit": {key: shown.get(key, "") for key in PROPERTIES},
        "exposure": float(exposure[1]) if exposure else None,
        "state": state,
    }


def machine() -> dict[str, Any]:
    query = "name,driver_version,memory.total,memory.used,memory.reserved"
    return {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "gpu": local(f"nvidia-smi --query-gpu={query} --format=csv,noheader"),
        "torch": local(f"{sys.executable} -c 'import torch; print(torch.__version__)'"),
        "host": ssh(
            ". /etc/os-release; echo $PRETTY_NAME; systemctl --version | head -1; systemctl is-system-running"
        ),
        "libraries": ssh(
            'python3 -c \'import ctypes; [ctypes.CDLL(x) for x in ("libcuda.so.1", "libnvidia-ml.so.1")]; print("ok")\''
        ),
        "ansible": local("ansible --version | head -1"),
    }


def pack_caches(out: Path) -> None:
    """The compile caches of the default instance, for a later machine of the same image: they save a minute."""
    place = f"/var/cache/sglang/default/{RELEASE}"
    said = ssh(f"cd {place} && tar cz --exclude=./xdg . | base64 -w0", 60)
    try:
        data = base64.b64decode(said, validate=True)
    except ValueError:
        return
    if 1000 < len(data) < LARGEST:
        (out / "caches.tar.gz").write_bytes(data)


def local(command: str) -> str:
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False, env=environment(), timeout=60
    )
    return (done.stdout or done.stderr).strip()[-400:]


def load_record(commit: str) -> dict[str, Any]:
    try:
        return dict(json.loads((RUN / "record.json").read_text()))
    except (OSError, ValueError):
        today = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        made = {"date": today, "commit": commit, "release": RELEASE, "machine": machine(), "steps": []}
        return made | ({"rehearsal": os.environ.get("AERIE_GPU_SERVER", "engine")} if REHEARSAL else {})


def markdown(record: dict[str, Any], names: list[str]) -> str:
    doubles = "Rehearsal with doubles: " if "rehearsal" in record else ""
    lines = [
        f"# {doubles}SGLang {record['release']} with EAGLE-3 on a GPU host, {record['date'][:10]}",
        "",
        f"Commit {record['commit'] or 'not given'}; GPU {record['machine']['gpu']}; "
        f"kernel {record['machine']['kernel']}.",
        "",
        "| step | as it should | seconds |",
        "|---|---|---|",
    ]
    for step in record["steps"]:
        verdict = "yes" if step["ok"] else f"NO: {step['why']}"
        lines.append(f"| {step['name']}: {step['what']} | {verdict} | {step['seconds']} |")
    reasons = record.get("not_run") or {}
    done = {step["name"] for step in record["steps"]}
    not_run = [f"{name} ({reasons.get(name, 'not reached')})" for name in names if name not in done]
    if not_run:
        lines += ["", f"Not run: {', '.join(not_run)}."]
    return "\n".join(lines) + "\n"


def write(record: dict[str, Any], names: list[str], out: Path) -> None:
    text = json.dumps(record, indent=1, sort_keys=True) + "\n"
    (RUN / "record.json").write_text(text)
    (out / "record.json").write_text(text)
    (out / "record.md").write_text(markdown(record, names))
    with tarfile.open(out / "logs.tar.gz", "w:gz", compresslevel=4) as archive:
        archive.add(RUN, "logs", filter=lambda item: None if item.size > LARGEST else item)
        if (STATE / "host.log").exists():
            archive.add(STATE / "host.log", "logs/host.log")


def on_host(words: list[str], seconds: float) -> dict[str, Any]:
    """One command of `on_host.py`, run in the host: its JSON line, or what went wrong."""
    script = (HERE / "on_host.py").read_text()
    quoted = " ".join(f"'{word}'" for word in words)
    said = ssh(f"python3 - {quoted} <<'AERIE'\n{script}\nAERIE", seconds)
    try:
        return dict(json.loads(said.splitlines()[-1]))
    except (ValueError, IndexError):
        return {"error": said[-400:]}
