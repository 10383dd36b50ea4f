"""The benchmark's own hosts, its inventory, and how its playbooks are run and timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
TOOL = ROOT / "tests" / "hosts" / "hosts"
HOSTS = ("bench1", "bench2", "bench3")
PLACE = ROOT / ".cache" / "bench"
INVENTORY = PLACE / "hosts.yml"
PING = PLACE / "ping.yml"
LIMIT_S = 1200


def run(*command: str | Path, text: str | None = None) -> tuple[float, str]:
    """Seconds and output of one command; ends the benchmark when it fails. ``text``: its standard input."""
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    }
    began = time.monotonic()
    done = subprocess.run(
        [str(word) for word in command], cwd=ROOT, env=environment, input=text, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    if done.returncode != 0:
        words = " ".join(str(word) for word in command)
        sys.exit(f"{done.stdout}\nbench: this ended with {done.returncode}: {words}")
    return time.monotonic() - began, done.stdout


def play(playbook: str | Path, hosts: tuple[str, ...], *more: str, unchanged: bool = False) -> float:
    """Seconds that a playbook takes on some of the hosts. ``unchanged``: it has to say so for each."""
    spent, output = run("ansible-playbook", "-i", INVENTORY, playbook, "--limit", ",".join(hosts), *more)
    if unchanged and output.count("changed=0") != len(hosts):
        sys.exit(f"{output}\nbench: {playbook} changed something on a host that was deployed already")
    return spent


def on_host(host: str, script: Path, *arguments: str) -> dict:
    """The JSON object that a script prints when a host's own Python runs it."""
    _, output = run(TOOL, "exec", host, "python3", "-", *arguments, text=script.read_text())
    return json.loads(output.strip().splitlines()[-1])


def prepare(count: int) -> None:
    """Boot ``count`` hosts with the CPU engine, unless they run, and deploy production on them."""
    PLACE.mkdir(parents=True, exist_ok=True)
    PING.write_text(
        "- hosts: sglang\n  gather_facts: false\n  tasks:\n    - name: Ping\n      ansible.builtin.ping:\n"
    )
    INVENTORY.write_text(json.dumps({"sglang": {"hosts": {name: {} for name in HOSTS}}}))
    link = PLACE / "group_vars"
    if not link.is_symlink():
        link.symlink_to(ROOT / "inventories" / "local" / "group_vars")
    settings = {
        # What inventories/local finds beside itself lies elsewhere for this inventory.
        "ansible_ssh_common_args": f"-F {ROOT / '.cache' / 'hosts' / 'ssh_config'}",
        "sglang_install_lock": str(ROOT / ".cache" / "wheelhouse" / "cpu-engine" / "lock.txt"),
    }
    (PLACE / "host_vars").mkdir(exist_ok=True)
    for name in HOSTS:
        (PLACE / "host_vars" / f"{name}.yml").write_text(json.dumps(settings))
    wheels = ROOT / ".cache" / "wheelhouse" / "cpu-engine"
    run(sys.executable, ROOT / "tests" / "cpu_engine" / "wheelhouse.py")
    run(sys.executable, ROOT / "tests" / "cpu_engine" / "snapshot.py")
    for name in HOSTS[:count]:
        print(f"booting {name} and deploying on it", flush=True)
        run(TOOL, "up", name, "--from", "engine", "--bind", f"{wheels}:/srv/wheelhouse:ro")
        play("production.yml", (name,))  # one after the other: a start needs a core


def clean() -> None:
    """Remove the benchmark's hosts."""
    for name in HOSTS:
        run(TOOL, "down", name)
