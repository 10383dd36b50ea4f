"""What every stage is made of: commands with a log, judgements of what they printed, and steps."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from record import ALSO, RELEASE, ROOT, RUN, environment

INVENTORY = "tests/gpu/inventory"
# Seconds that a step leaves over for what the runner writes after it.
RESERVE = 8.0


@dataclass
class Done:
    """One command that was run: its exit status (124: it had to be ended), output and seconds."""

    status: int
    output: str
    seconds: float


@dataclass
class Outcome:
    """What a step came to. ``why``: None when it went as it should. ``facts``: what goes into the record."""

    why: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Context:
    """What a step is given: the end of its time, the person's settings, and where its logs go."""

    step: str
    deadline: float
    settings: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def log(self, name: str = "") -> Path:
        return RUN / (f"{self.step}.{name}.log" if name else f"{self.step}.log")

    def run(self, command: list[str], name: str = "") -> Done:
        """Run one command within the step's time, its output in a log of its own."""
        if command[0] == "ansible-playbook":
            command = [*command, *(word for one in self.settings for word in ("-e", as_json(one)))]
        done = run(command, self.log(name), self.left())
        commands = self.facts.setdefault("commands", {})
        commands[name or self.step] = {
            "command": " ".join(command),
            "status": done.status,
            "seconds": done.seconds,
            "recap": recaps(done.output),
        }
        return done

    def run_together(self, commands: dict[str, list[str]]) -> dict[str, Done]:
        """Run several commands at the same time."""
        done: dict[str, Done] = {}

        def one(name: str, command: list[str]) -> None:
            done[name] = self.run(command, name)

        threads = [threading.Thread(target=one, args=item) for item in commands.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return done


@dataclass(frozen=True)
class Step:
    """``needs``: seconds without which it is not begun. ``after``: steps that must have gone as they should."""

    name: str
    needs: int
    what: str
    work: Callable[[Context], Outcome]
    after: tuple[str, ...] = ()


def command_step(
    name: str,
    needs: int,
    what: str,
    command: list[str],
    judge: Callable[[Done], str | None],
    after: tuple[str, ...] = (),
) -> Step:
    """A step that is one command and one judgement of it."""

    def work(context: Context) -> Outcome:
        done = context.run(command)
        return Outcome(judge(done), {"tail": tail(done.output)} if judge(done) else {})

    return Step(name, needs, what, work, after)


def run(command: list[str], log: Path, seconds: float) -> Done:
    """Run one command with its output in ``log``; status 124 when it had to be ended."""
    began = time.monotonic()
    said = log.with_suffix(".ansible.log")
    said.unlink(missing_ok=True)  # that of a step that is done again holds other moments
    variables = {**environment(), "ANSIBLE_LOG_PATH": str(said)}
    with log.open("ab") as out:
        out.write(f"$ {' '.join(command)}\n".encode())
        out.flush()
        begin = out.tell()
        process = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
        try:
            status = process.wait(timeout=max(seconds, 5))
        except subprocess.TimeoutExpired:
            status = 124
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    output = log.read_bytes()[begin:].decode(errors="replace")
    return Done(status, output, round(time.monotonic() - began, 2))


def inventories(*more: str) -> list[str]:
    """-i for the host's inventory and for those after it. A rehearsal's comes last: its group's variables win, but
    not over what side instances have as hosts."""
    return [word for one in (INVENTORY, *more, *ALSO) for word in ("-i", one)]


def group_vars(*more: str) -> dict[str, Any]:
    """The group's variables as Ansible merges the inventories: the last one that names a variable wins."""
    made: dict[str, Any] = {}
    for place in (INVENTORY, *more, *ALSO):
        made |= yaml.safe_load((ROOT / place / "group_vars/sglang.yml").read_text())
    return made


def arguments(*more: str, **other: Any) -> dict[str, Any]:
    """The inventories' server arguments with some changed; None leaves one out."""
    made = {**group_vars(*more)["sglang_server_arguments"], **other}
    return {name: value for name, value in made.items() if value is not None}


def playbook(name: str, *options: str, **variables: Any) -> list[str]:
    """A playbook against the host, with variables as one JSON."""
    extra = ["-e", json.dumps(variables, sort_keys=True)] if variables else []
    return ["ansible-playbook", *inventories(), name, *options, *extra]


def module(name: str, arguments: dict[str, Any], *options: str) -> list[str]:
    """One module on the host, its result as YAML."""
    return ["ansible", *inventories(), "-m", name, "-a", json.dumps(arguments), *options, "gpu"]


def hidden_states(host: str, instance: str, port: int, *more: str) -> list[str]:
    """Compare what reaches the draft of a debug server with the reference; a mismatch fails it."""
    arguments = {
        "url": f"http://127.0.0.1:{port}",
        "probes": f"/var/cache/sglang/{instance}/probes",
        "reference": "/srv/models/reference.safetensors",
        "python": f"/opt/sglang/releases/{RELEASE}/bin/python",
        "user": "sglang",
        "training_layers": [1, 7, 12],
        "release": RELEASE,
        "label": instance,
        "page": str(RUN / f"hidden-states-{instance}.html"),
    }
    return ["ansible", *inventories(*more), "-m", "sglang_hidden_states", "-a", json.dumps(arguments), host]


def verdict(output: str) -> dict[str, Any]:
    """State, sentence and next step of a comparison, from what `ansible` printed."""
    found = {
        name: match.group(1).strip().strip("'\"")
        for name in ("state", "verdict", "next")
        if (match := re.search(rf"^    {name}: (.*(?:\n     +.*)*)", output, re.MULTILINE))
    }
    return {name: " ".join(text.split()) for name, text in found.items()} | {"codes": codes(output)}


def as_json(setting: str) -> str:
    """``NAME=VALUE`` as Ansible takes it without turning false and numbers into texts."""
    name, _, value = setting.partition("=")
    try:
        return json.dumps({name: json.loads(value)})
    except ValueError:
        return json.dumps({name: value})


def tail(output: str, lines: int = 60) -> str:
    return "\n".join(output.splitlines()[-lines:])


def recaps(output: str) -> dict[str, dict[str, int]]:
    """ok, changed, unreachable, failed … by host, from a playbook's last lines."""
    found = re.findall(r"^(gpu[\w.-]*)\s*:\s*(ok=.*)$", output, re.MULTILINE)
    return {
        host: {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", line)} for host, line in found
    }


def recap(output: str) -> dict[str, int] | None:
    """The recap of the host itself."""
    return recaps(output).get("gpu")


def codes(output: str) -> list[str]:
    """The stable codes of Aerie's errors in a text, each once, in order."""
    text = re.sub(r"\b(?:ok|changed|fatal|failed|skipping|unreachable|included): \[[^]]*\]", "", output)
    return list(dict.fromkeys(re.findall(r"\[([a-z][a-z0-9]*(?:-[a-z0-9]+)+)\]", text)))


def passed(done: Done) -> str | None:
    return None if done.status == 0 else f"exit status {done.status}"


def unchanged(done: Done) -> str | None:
    if done.status != 0:
        return f"exit status {done.status}"
    changed = (recap(done.output) or {}).get("changed")
    return None if changed == 0 else f"changed={changed}, 0 was expected"


def changed(done: Done) -> str | None:
    if done.status != 0:
        return f"exit status {done.status}"
    return None if (recap(done.output) or {}).get("changed") else "nothing changed, a change was expected"


def refused_with(*expected: str) -> Callable[[Done], str | None]:
    """A judgement: the run failed, with one of these codes."""

    def judge(done: Done) -> str | None:
        if done.status == 0:
            return "it was accepted"
        found = codes(done.output)
        if set(found) & set(expected):
            return None
        return f"it failed for another reason: {', '.join(found) or 'no code'}"

    return judge


def first_failure(whys: Iterable[str | None]) -> str | None:
    """Every reason that is one, joined."""
    return "; ".join(why for why in whys if why) or None
