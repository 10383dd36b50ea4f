"""Stage 2: production -> debug -> production, three rounds.

In debug the probes are read and the hidden states compared with `reference.py`'s; back in production the tree must be
the wheel's, byte for byte, and each time NVML must show the card empty before the next server starts.
"""

from __future__ import annotations

import json
from typing import Any

import timeline
from record import RUN, SIDE_CARD, ssh

from .core import (
    Context,
    Outcome,
    Step,
    changed,
    codes,
    first_failure,
    playbook,
    tail,
)

# Runs on the host: the running deployment's tree against its wheel's RECORD, and the probes' directory.
TREE = r"""
import base64, csv, hashlib, json, pathlib
current = pathlib.Path("/var/lib/sglang/{instance}/current").resolve()
site = current / "site"
record = next(site.glob("sglang-*.dist-info/RECORD"))
wrong, rows = [], 0
for name, wanted, _ in csv.reader(record.read_text().splitlines()):
    # The deployment holds the package and its dist-info; RECORD also names what the wheel puts beside them.
    if not name.startswith("sglang/") or not name.endswith(".py") or not wanted.startswith("sha256="):
        continue
    rows += 1
    file = site / name
    digest = hashlib.sha256(file.read_bytes()).digest() if file.is_file() else b""
    if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != wanted[7:]:
        wrong.append(name)
listed = {{row[0] for row in csv.reader(record.read_text().splitlines())}}
extra = sorted(
    str(p.relative_to(site)) for p in site.rglob("*.py") if str(p.relative_to(site)) not in listed
)
print(json.dumps({{"deployment": current.name, "checked": rows, "wrong": wrong, "extra": extra}}))
"""


def tree(instance: str = "default") -> dict[str, Any]:
    """What of the running tree differs from the wheel's RECORD; files that RECORD does not name."""
    said = ssh(f"python3 - <<'AERIE'\n{TREE.format(instance=instance)}\nAERIE", 60)
    try:
        return dict(json.loads(said.splitlines()[-1]))
    except (ValueError, IndexError):
        return {"error": said[-400:]}


def judge_tree(found: dict[str, Any], patched: bool) -> str | None:
    """Debug's tree must have patches; production's must be the wheel's."""
    if "error" in found or not found.get("checked"):
        return f"the tree could not be compared: {found}"
    differs = bool(found["wrong"] or found["extra"])
    if patched:
        return None if differs else "debug mode, and no file differs from the wheel"
    return None if not differs else f"differs from the wheel: {found['wrong'][:5]} {found['extra'][:5]}"


def moments(context: Context, name: str) -> list[dict[str, float]]:
    """When the card was empty, from NVML's timeline against Ansible's log."""
    try:
        seen = (RUN / "timeline.jsonl").read_text()
        log = context.log(name).with_suffix(".ansible.log").read_text(errors="replace")
    except OSError:
        return []
    return timeline.freed(seen, log, [0] if SIDE_CARD else None)


EVENTS = r"""
import collections, glob, json
kinds, pids = collections.Counter(), set()
for path in glob.glob("/var/cache/sglang/{instance}/probes/events.jsonl"):
    for line in open(path):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        kinds[event.get("event")] += 1
        pids.add(event.get("pid"))
print(json.dumps({{"kinds": kinds, "pids": sorted(pids)}}))
"""


def events(instance: str = "default") -> dict[str, Any]:
    """Which processes wrote probe events, and how many of each kind."""
    said = ssh(f"python3 - <<'AERIE'\n{EVENTS.format(instance=instance)}\nAERIE", 30)
    try:
        return dict(json.loads(said.splitlines()[-1]))
    except (ValueError, IndexError):
        return {"error": said[-300:]}


def said(output: str) -> list[str]:
    """What the road said of the hidden states, the accept length and its agreement with debug mode."""
    found: list[str] = []
    inside = False
    for line in output.splitlines():
        if line.startswith("TASK ["):
            inside = "What the draft gets" in line or "What the gates measured" in line
        elif inside and (text := line.strip()) and not text.startswith(("ok:", "msg: |")):
            found.append(text.removeprefix("msg: "))
    return found


def road(
    context: Context, name: str, book: str, patched: bool, **variables: Any
) -> tuple[str | None, dict[str, Any]]:
    """One way of a round: the playbook, the tree that runs after it, and the card in between."""
    done = context.run(playbook(book, **variables), name)
    found = tree()
    facts = {
        "seconds": done.seconds,
        "tree": found,
        "gpu": moments(context, name),
        "codes": codes(done.output),
        "said": said(done.output),
    }
    why = changed(done)
    if why:
        facts["tail"] = tail(done.output)
    return first_failure((why, judge_tree(found, patched))), facts


def round_of(number: int) -> Step:
    def work(context: Context) -> Outcome:
        why_debug, debug = road(context, "debug", "debug.yml", True)
        debug["probes"] = events()
        why_back, back = road(context, "back", "production.yml", False)
        return Outcome(
            first_failure((why_debug and f"debug: {why_debug}", why_back and f"back: {why_back}")),
            {"debug": debug, "back": back},
        )

    return Step(
        f"round-{number}", 145, f"production -> debug -> production, round {number}", work, ("production",)
    )


STEPS = tuple(round_of(number) for number in (1, 2, 3))
