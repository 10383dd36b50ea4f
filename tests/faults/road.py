"""Driving the road from outside: runs of playbooks that can be killed, and a host that can be looked at and hurt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from nvml.scenario import Gpu, Holder, Scenario

HERE = Path(__file__).resolve().parent
HOSTS = ROOT / "tests/hosts/hosts"
STATE = "/var/lib/sglang/default"
UNIT = "sglang-default.service"


LOOK = """
import json, os, subprocess, urllib.request

def read(path):
    try:
        return json.load(open("{state}/" + path))
    except (OSError, ValueError):
        return None

def run(*words):
    return subprocess.run(words, capture_output=True, text=True).stdout

try:
    health = urllib.request.urlopen("http://127.0.0.1:30000/health", timeout=5).status
except OSError as error:
    health = getattr(error, "code", 0)
words = run("systemctl", "show", "{unit}", "--property=ActiveState,MainPID,UnitFileState,NRestarts").split()
unit = dict(word.partition("=")[::2] for word in words)
try:
    current = os.path.basename(os.readlink("{state}/current"))
    deployments = os.listdir("{state}/deployments")
except OSError:
    current, deployments = "", []
print(json.dumps(dict(
    state=read("state.json") or {{}}, current=current, mode=(read("current/spec.json") or {{}}).get("mode"),
    lease=read("lease.json"), active=unit.get("ActiveState"), pid=int(unit.get("MainPID") or 0),
    boot=unit.get("UnitFileState"), health=health, deployments=deployments,
    chain=run("nft", "list", "chain", "inet", "aerie", "sglang-default"),
)))
"""


@dataclass
class Outcome:
    """A run of a playbook: exit code, what it printed, its events, how long it took (s)."""

    rc: int
    output: str
    events: list[dict[str, Any]]
    seconds: float

    def tasks(self) -> list[dict[str, Any]]:
        """Task starts, in order: {n, name, action}."""
        return [one for one in self.events if one["event"] == "task"]

    def changed(self) -> list[int]:
        return [one["n"] for one in self.events if one["event"] == "ok" and one["changed"]]

    def failures(self) -> list[dict[str, Any]]:
        return [one for one in self.events if one["event"] in ("failed", "unreachable")]

    def codes(self) -> list[str]:
        """Codes of the errors, in order."""
        return [(one.get("error") or {}).get("code", "") for one in self.failures()]

    def last_words(self) -> str:
        """The message of the last failure, which is what a person reads at the end."""
        return str(self.failures()[-1].get("msg")) if self.failures() else ""

    def told(self) -> str:
        """For an assertion's message."""
        return f"rc {self.rc} after {self.seconds:.0f} s\n" + self.output[-4000:]


@dataclass
class Run:
    """A run under way."""

    process: subprocess.Popen[str]
    events_file: Path
    log: Path
    began: float = field(default_factory=time.monotonic)

    def events(self) -> list[dict[str, Any]]:
        lines = self.events_file.read_text().splitlines() if self.events_file.exists() else []
        return [json.loads(line) for line in lines]

    def wait_for(self, task: str, timeout: float = 600.0) -> None:
        """Wait until the task of that name starts."""
        until = time.monotonic() + timeout
        while not any(task in str(one.get("name")) for one in self.events()):
            assert time.monotonic() < until, f"{task!r} did not start\n{self.log.read_text()[-3000:]}"
            assert self.process.poll() is None, f"ended before {task!r}\n{self.log.read_text()[-3000:]}"
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL to ansible-playbook alone; its children live on, as they would."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait(self, timeout: float = 600.0) -> Outcome:
        try:
            rc = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"no end after {timeout} s\n{self.log.read_text()[-3000:]}") from None
        return Outcome(rc, self.log.read_text(), self.events(), time.monotonic() - self.began)


class Road:
    """Playbooks against the scenario's host, always with the events recorded."""

    def __init__(self, inventory: Path) -> None:
        self.inventory = inventory
        self.scratch = Path(tempfile.mkdtemp(prefix="aerie-faults-"))
        self.count = 0

    def start(
        self,
        playbook: str,
        *words: str,
        kill_at: str = "",
        delay: float = 0.0,
        everything: bool = False,
        more: dict[str, str] | None = None,
    ) -> Run:
        self.count += 1
        events, log = (self.scratch / f"{self.count}.{kind}" for kind in ("jsonl", "log"))
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_CALLBACK_PLUGINS": str(HERE / "callback"),
            "ANSIBLE_CALLBACKS_ENABLED": "boundaries",
            "ANSIBLE_NOCOLOR": "1",
            "AERIE_EVENTS": str(events),
            "AERIE_KILL_AT": kill_at,
            "AERIE_KILL_DELAY": str(delay),
            "AERIE_KILL_ALL": "yes" if everything else "",
            **(more or {}),
        }
        command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(self.inventory)]
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, str(ROOT / "playbooks" / playbook), *words],
                cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
        return Run(process, events, log)

    def run(self, playbook: str, *words: str, timeout: float = 600.0, **options: Any) -> Outcome:
        return self.start(playbook, *words, **options).wait(timeout)


class Host:
    """The host, by the host tool and not through Ansible."""

    def __init__(self, name: str) -> None:
        self.name = name

    def tool(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            [sys.executable, str(HOSTS), *words], capture_output=True, text=True, timeout=120, check=False
        )
        assert not check or done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def sh(self, script: str, *, check: bool = True) -> str:
        return self.tool("exec", self.name, "sh", "-c", script, check=check)

    def end_sessions(self) -> None:
        """SIGKILL to whatever ssh sessions run on the host: modules, and the commands that they wait for."""
        self.sh(
            "for d in /sys/fs/cgroup/system.slice/ssh.service /sys/fs/cgroup/user.slice/user-0.slice/session-*; do"
            " for p in $(cat $d/cgroup.procs 2>/dev/null); do"
            " [ $(cat /proc/$p/comm) = sshd ] || kill -9 $p; done; done",
            check=False,
        )

    def misbehave(self, **how: Any) -> None:
        """Tell the double (tests/server_double) what to do wrong; nothing: behave."""
        self.sh(f"cat > /srv/double/commands.json <<'END'\n{json.dumps(how)}\nEND")

    def ask(self, seconds: float, mode: str) -> None:
        """A request to the server of that mode which takes so long, in the background: a stop has to drain it."""
        self.misbehave(only=mode, drain=seconds)
        body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 4}}
        head = {"Authorization": "Bearer a-key-of-the-double"}
        ask = (
            "import urllib.request as u; u.urlopen(u.Request('http://127.0.0.1:30000/generate',"
            f" {json.dumps(body).encode()!r}, {head!r})).read()"
        )
        self.tool("exec", self.name, "systemd-run", "--quiet", "--collect", "python3", "-c", ask)

    def gpu(self, *others: dict[str, Any], init: str = "ok", **server: Any) -> None:
        """The host's one GPU from now on (a double, tests/nvml): ``server`` is how the unit's scheduler holds it."""
        group = f"/sys/fs/cgroup/system.slice/{UNIT}"
        own = Holder(id="server", cgroup=group, match="sglang::scheduler", **server)
        text = Scenario([Gpu()], holders=[own, *(Holder(**one) for one in others)], init=init).text()
        place = "/etc/aerie-nvml/scenario"
        self.sh(f"cat > {place}.part <<'END'\n{text}END\nmv {place}.part {place}; rm -f {place}.state")

    def seen(self) -> dict[str, Any]:
        """What the host is at this moment, in one look."""
        text = self.tool("exec", self.name, "python3", "-c", LOOK.format(state=STATE, unit=UNIT))
        found: dict[str, Any] = json.loads(text)
        return {**found, "refused": "dport 30000" in found["chain"]}
