#!/usr/bin/env python3
"""Aerie's playbooks against the host that host.py booted, step by step, with a record: `tests/gpu/run.py --help`.

A step that was done is not done again by the next call, so that several short calls add up to one run. Everything is
written under $OUT after each step: record.json, record.md, and logs.tar.gz with each step's output, the unit's
properties, its journal and systemd's security report.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from record import RUN, STATE, environment, load_record, markdown, observe, write

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
INVENTORY = "tests/gpu/inventory"
# A wrongly wired draft: the right weights, but fed from layers 0, 1 and 2. It was accepted at 2.15 on an H200.
WRONG = "sglang_server_draft_model_path=/srv/models/draft-shallow"


@dataclass
class Done:
    """One command that was run: its exit status, output and seconds."""

    status: int
    output: str
    seconds: float


@dataclass(frozen=True)
class Step:
    """``needs``: seconds without which it is not begun. ``judge``: None when it went as it should, else why not."""

    name: str
    needs: int
    what: str
    command: list[str]
    judge: Callable[[Done], str | None]


def run(command: list[str], log: Path, seconds: float) -> Done:
    """Run one command with its output in ``log``; status 124 when it had to be ended."""
    began = time.monotonic()
    with log.open("wb") as out:
        out.write(f"$ {' '.join(command)}\n".encode())
        out.flush()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            status = process.wait(timeout=max(seconds, 5))
        except subprocess.TimeoutExpired:
            process.terminate()
            status = 124
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return Done(status, log.read_text(errors="replace"), round(time.monotonic() - began, 1))


def recap(output: str) -> dict[str, int] | None:
    """ok, changed, unreachable, failed … of the host, from a playbook's last lines."""
    lines = re.findall(r"^gpu\s*:\s*(ok=.*)$", output, re.MULTILINE)
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", lines[-1])} if lines else None


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


def zero(done: Done) -> str | None:
    return None if done.status == 0 and re.search(r'"?zero"?: true', done.output) else "the GPU was not empty"


def held(done: Done) -> str | None:
    return (
        None if "holders" in done.output and done.status != 0 else "no holder was named, though a server runs"
    )


def refused(done: Done) -> str | None:
    """A wrongly wired draft must be stopped, by the draft's check or by the floor."""
    if done.status == 0:
        return "it was accepted"
    stopped = re.search(r"\[(accept-length-below-floor|draft-check-failed)\]", done.output)
    return None if stopped else "it failed for another reason"


def playbook(name: str, *options: str) -> list[str]:
    return ["ansible-playbook", "-i", INVENTORY, name, *options]


def gpu_memory(where: str, timeout: int) -> list[str]:
    words = ["ansible", "-m", "gpu_memory_zero", "-a", f"timeout={timeout}"]
    if where == "machine":
        # Before anything is installed in the host: NVML's bindings are in the image.
        return [
            *words,
            "-i",
            "localhost,",
            "-c",
            "local",
            "-e",
            f"ansible_python_interpreter={sys.executable}",
            "all",
        ]
    return [*words, "-i", INVENTORY, "gpu"]


STEPS = (
    Step("gpu-idle", 10, "GPU memory before anything, read outside the host", gpu_memory("machine", 0), zero),
    Step(
        "check-virgin",
        40,
        "production.yml --check --diff on the bare host",
        playbook("production.yml", "--check", "--diff"),
        passed,
    ),
    Step("production", 200, "production.yml: install, deploy, gates", playbook("production.yml"), changed),
    Step("gpu-held", 15, "GPU memory while it serves: the holder is named", gpu_memory("host", 0), held),
    Step("again", 30, "production.yml again: nothing changes", playbook("production.yml"), unchanged),
    Step(
        "check-running",
        30,
        "production.yml --check --diff while it serves",
        playbook("production.yml", "--check", "--diff"),
        unchanged,
    ),
    Step("status", 15, "status.yml", playbook("playbooks/status.yml"), passed),
    Step(
        "baseline",
        110,
        "baseline.yml: the same without speculation",
        playbook("playbooks/baseline.yml"),
        changed,
    ),
    Step(
        "production-back", 110, "production.yml back from the baseline", playbook("production.yml"), changed
    ),
    Step("stop", 30, "stop.yml", playbook("playbooks/stop.yml"), changed),
    Step("gpu-zero", 15, "GPU memory after the stop", gpu_memory("host", 30), zero),
    Step(
        "wrong-draft",
        120,
        "production.yml with the draft fed from the wrong layers: must be refused",
        playbook("production.yml", "-e", WRONG),
        refused,
    ),
)


NAMES = [step.name for step in STEPS]


def as_json(setting: str) -> str:
    """``NAME=VALUE`` as Ansible takes it without turning false and numbers into texts."""
    name, _, value = setting.partition("=")
    try:
        return json.dumps({name: json.loads(value)})
    except ValueError:
        return json.dumps({name: value})


def perform(step: Step, seconds: float, settings: list[str]) -> dict[str, Any]:
    print(f"run: {step.name}: {step.what}", flush=True)
    command = [*step.command]
    if command[0] == "ansible-playbook":
        command += [word for setting in settings for word in ("-e", as_json(setting))]
    done = run(command, RUN / f"{step.name}.log", seconds)
    why = step.judge(done)
    entry: dict[str, Any] = {
        "name": step.name,
        "what": step.what,
        "command": " ".join(command),
        "status": done.status,
        "seconds": done.seconds,
        "recap": recap(done.output),
        "ok": why is None,
        "why": why or "",
    }
    print(
        f"run: {step.name}: {'as it should' if why is None else 'NOT as it should: ' + why}, {done.seconds} s",
        flush=True,
    )
    if why is not None:
        print("\n".join(done.output.splitlines()[-60:]), flush=True)
    if not step.name.startswith("gpu-") and step.name != "check-virgin":
        entry["observed"] = observe(step.name)
    return entry


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=540, help="end within this time; what does not fit is left out"
    )
    parser.add_argument("--steps", default="", help="only these, by comma: " + ", ".join(NAMES))
    parser.add_argument("--again", action="store_true", help="do steps again that were done")
    parser.add_argument("--go-on", action="store_true", help="do not end at the first step that went wrong")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a variable for each playbook"
    )
    parser.add_argument("--commit", default="", help="what the record shall name as the commit that was run")
    options = parser.parse_args()
    began = time.monotonic()
    out = Path(os.environ.get("OUT") or STATE / "out")
    out.mkdir(parents=True, exist_ok=True)
    RUN.mkdir(parents=True, exist_ok=True)
    wanted = [name for name in options.steps.split(",") if name] or NAMES
    if unknown := sorted(set(wanted) - set(NAMES)):
        parser.error(f"no such step: {', '.join(unknown)}")
    record = load_record(options.commit)
    for step in (step for step in STEPS if step.name in wanted):
        if not options.again and any(done["name"] == step.name and done["ok"] for done in record["steps"]):
            continue
        left = options.seconds - (time.monotonic() - began)
        if left < step.needs:
            print(f"run: {step.name} is left out: {left:.0f} s left, {step.needs} s needed", flush=True)
            break
        entry = perform(step, left - 10, options.set)
        record["steps"] = [done for done in record["steps"] if done["name"] != step.name] + [entry]
        write(record, NAMES, out)
        if not entry["ok"] and not options.go_on:
            break
    write(record, NAMES, out)
    print(markdown(record, NAMES))
    return 0 if all(step["ok"] for step in record["steps"]) else 1


if __name__ == "__main__":
    sys.exit(main())
