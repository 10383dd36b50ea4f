#!/usr/bin/env python3
"""Aerie's playbooks against the host that host.py booted, step by step, with a record: `tests/gpu/run.py --help`.

A step that went as it should is not done again by the next call, so that several short calls add up to one run. What
does not fit into --seconds, or needs a step that went wrong, is left out and recorded so. Everything is written under
$OUT after each step: record.json, record.md, logs.tar.gz, caches.tar.gz.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from record import HERE, REHEARSAL, RUN, STATE, load_record, markdown, observe, pack_caches, write
from stages import PLANS, STEPS
from stages.core import RESERVE, Context, Outcome, Step, as_json, tail

# Steps after which the unit is not looked at: they take a second, or the unit is not what they are about.
UNSEEN = (
    "gpu-idle",
    "gpu-held",
    "gpu-zero",
    "check-virgin",
    "foreign",
    "speed",
    "speed-up",
    "speed-stop",
    "clear",
)
BY_NAME = {step.name: step for step in STEPS}
__all__ = ["as_json", "main"]


def perform(step: Step, seconds: float, settings: list[str]) -> dict[str, Any]:
    """Do one step within ``seconds``; its entry of the record."""
    print(f"run: {step.name}: {step.what}", flush=True)
    began = time.monotonic()
    context = Context(step.name, began + seconds, settings)
    try:
        outcome = step.work(context)
    except Exception as error:  # a broken step must not take the others' records with it
        outcome = Outcome(f"{type(error).__name__}: {error}")
    spent = round(time.monotonic() - began, 1)
    verdict = "as it should" if outcome.why is None else f"NOT as it should: {outcome.why}"
    print(f"run: {step.name}: {verdict}, {spent} s", flush=True)
    if outcome.why is not None:
        for path in sorted(RUN.glob(f"{step.name}*.log")):
            if not path.name.endswith(".ansible.log"):
                print(tail(path.read_text(errors="replace"), 25), flush=True)
    entry = {
        "name": step.name,
        "what": step.what,
        "seconds": spent,
        "ok": outcome.why is None,
        "why": outcome.why or "",
        **context.facts,
        "facts": outcome.facts,
    }
    if step.name not in UNSEEN:
        entry["observed"] = observe(step.name)
    return entry


def left_out(step: Step, record: dict[str, Any], left: float) -> str | None:
    """Why a step is not begun, or None."""
    good = {done["name"] for done in record["steps"] if done["ok"]}
    missing = [name for name in step.after if name not in good]
    if missing:
        return f"needs {', '.join(missing)}"
    # A rehearsal's seconds are those of another machine.
    if left < step.needs and not REHEARSAL:
        return f"{left:.0f} s left, {step.needs} s needed"
    return None


def chains(group: str) -> list[list[str]]:
    """A group of a plan: chains at the same time, joined by +; the steps of a chain one after the other, by /."""
    return [chain.split("/") for chain in group.split("+")]


@dataclass
class Run:
    """The steps of one call: what is known of them, and until when they may take."""

    record: dict[str, Any]
    wanted: list[str]
    out: Path
    deadline: float
    again: bool
    settings: list[str]
    lock: threading.Lock = field(default_factory=threading.Lock)

    def group(self, group: str) -> None:
        """Do a group's chains, each in a thread of its own."""
        listed = chains(group)
        with ThreadPoolExecutor(max_workers=len(listed)) as pool:
            list(pool.map(lambda chain: self.chain(chain, len(listed) > 1), listed))

    def chain(self, names: list[str], beside: bool) -> None:
        """Do one chain's steps; a step that is left out takes with it those that need it, no others."""
        for step in (BY_NAME[name] for name in names):
            done = self.record["steps"]
            if not self.again and any(one["name"] == step.name and one["ok"] for one in done):
                continue
            left = self.deadline - time.monotonic()
            if why := left_out(step, self.record, left):
                print(f"run: {step.name} is left out: {why}", flush=True)
                self.record["not_run"][step.name] = why
                continue
            entry = perform(step, left - RESERVE, self.settings) | {"beside_others": beside}
            with self.lock:
                others = [one for one in self.record["steps"] if one["name"] != step.name]
                self.record["steps"] = [*others, entry]
                write(self.record, self.wanted, self.out)


def watch() -> None:
    """NVML's timeline, for as long as the machine lives; one is enough."""
    pid = RUN / "timeline.pid"
    try:
        os.kill(int(pid.read_text()), 0)
    except (OSError, ValueError):
        process = subprocess.Popen(
            [sys.executable, str(HERE / "timeline.py"), str(RUN / "timeline.jsonl")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(RUN / "timeline.err").open("ab"),
            start_new_session=True,
        )
        pid.write_text(str(process.pid))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=540, help="end within this time; what does not fit is left out"
    )
    parser.add_argument("--plan", choices=sorted(PLANS), default="one", help="which steps, in which order")
    parser.add_argument(
        "--steps",
        default="",
        help="only these: groups by comma, chains at the same time by +, a chain's steps by / "
        "(production,wiring/kills+round-1): " + ", ".join(BY_NAME),
    )
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
    groups = options.steps.split(",") if options.steps else PLANS[options.plan]
    wanted = [name for group in groups for chain in chains(group) for name in chain]
    if unknown := sorted(set(wanted) - BY_NAME.keys()):
        parser.error(f"no such step: {', '.join(unknown)}")
    watch()
    record = load_record(options.commit)
    record["not_run"] = {}
    this = Run(record, wanted, out, began + options.seconds, options.again, options.set)
    for group in groups:
        this.group(group)
        if not options.go_on and any(not done["ok"] for done in record["steps"]):
            break
    pack_caches(out)
    write(record, wanted, out)
    print(markdown(record, wanted))
    return 0 if all(step["ok"] for step in record["steps"]) else 1


if __name__ == "__main__":
    sys.exit(main())
