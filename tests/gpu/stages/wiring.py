"""Stage 3: wrongly wired drafts, and which check stops each.

Three checks, cheapest first: the draft check (no start), the hidden-state check and the accept length (one debug
server each, all side by side on the card). A draft that differs by its layer ids alone looks right to the first one
as long as nobody says which layers it was trained on, so each is judged without `sglang_server_training_layers`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from record import RELEASE, RUN, ssh

from . import side
from .core import Context, Done, Outcome, Step, arguments, hidden_states, module, recaps, verdict

ONLY = tuple(filter(None, os.environ.get("AERIE_GPU_CASES", "").split(",")))
EAGLE3 = {"algorithm": "EAGLE3", "num_steps": 5, "eagle_topk": 1, "num_draft_tokens": 6}
FLOOR = 2.8


@dataclass(frozen=True)
class Case:
    """A draft, and the checks that must stop it: draft-check, hidden-states, accept-length. Empty: none may."""

    name: str
    draft: str
    stopped_by: tuple[str, ...]
    algorithm: str = "EAGLE3"


ALL_CASES = (
    Case("right", "draft-right", ()),
    Case("none", "draft-none", ()),
    Case("off-by-one", "draft-off-by-one", ("hidden-states",)),
    Case("shifted", "draft-shifted", ("hidden-states",)),
    Case("deep", "draft-deep", ("hidden-states", "accept-length")),
    Case("shallow", "draft-shallow", ("hidden-states", "accept-length")),
    # The states are right; what is done with them is not. Only the result can show that.
    Case("fc-reversed", "draft-fc-reversed", ("accept-length",)),
    Case("random", "draft-random", ("accept-length",)),
    Case("eagle", "draft-right", ("draft-check",), algorithm="EAGLE"),
)

# A rehearsal on two cores takes a few of them.
CASES = tuple(case for case in ALL_CASES if not ONLY or case.name in ONLY)


def draft_check(case: Case) -> list[str]:
    return module(
        "sglang_draft_check",
        {
            "target": "/srv/models/target",
            "draft": f"/srv/models/{case.draft}",
            "release": RELEASE,
            "algorithm": case.algorithm,
            "num_steps": EAGLE3["num_steps"],
            "eagle_topk": EAGLE3["eagle_topk"],
            "num_draft_tokens": EAGLE3["num_draft_tokens"],
        },
    )


def instances() -> list[side.Instance]:
    """One debug instance for each case that a draft check lets through."""
    started = [case for case in CASES if case.stopped_by != ("draft-check",)]
    return [
        side.Instance(
            f"w-{case.name}",
            number,
            {
                "sglang_server_draft_model_path": f"/srv/models/{case.draft}",
                # Nobody says which layers it was trained on, and the comparison is made beside the road.
                "sglang_server_training_layers": [],
                "sglang_server_hidden_states_reference": "",
                # Idle schedulers that poll would take half of the machine's processors.
                "sglang_server_arguments": arguments(sleep_on_idle=True),
                # Off: each check is to be seen alone; the accept length is judged here.
                "sglang_server_min_accept_length": 0.0,
            },
        )
        for number, case in enumerate(started)
    ]


def measured(output: str, host: str) -> list[float] | None:
    """Accept length with its interval, as the road printed it of one host."""
    lines, mine = [], False
    for line in output.splitlines():
        if match := re.match(r"(?:ok|changed|fatal|failed|skipping): \[([\w.-]+)\]", line):
            mine = match.group(1) == host
        elif line.startswith(("TASK [", "PLAY ")):
            mine = False
        if mine or line.strip().startswith(f"{host}:"):
            lines.append(line)
    text = "\n".join(lines)
    length = re.search(r"accept length ([0-9.]+) \[([0-9.]+), ([0-9.]+)\]", text)
    return [float(one) for one in length.groups()] if length else None


def stopped(found: dict[str, Any], check: Done | None, floor: float) -> list[str]:
    """Which checks stopped a draft, from what they printed."""
    by = []
    if check is not None and check.status != 0:
        by.append("draft-check")
    if "hidden-states-differ" in found.get("hidden_states", {}).get("codes", []):
        by.append("hidden-states")
    length = found.get("accept_length")
    if length and length[1] < floor:
        by.append("accept-length")
    return by


def judge(rows: list[dict[str, Any]]) -> str | None:
    """Every wrong draft is stopped by every check that must see it; a right one by none."""
    wrong = [
        f"{row['case']}: stopped by {row['stopped_by'] or 'nothing'}, expected {row['expected'] or 'nothing'}"
        for row in rows
        if not set(row["expected"]) <= set(row["stopped_by"]) or (not row["expected"] and row["stopped_by"])
    ]
    return "; ".join(wrong) or None


def work(context: Context) -> Outcome:
    checks = context.run_together({f"check-{case.name}": draft_check(case) for case in CASES})
    listed = instances()
    if why := side.seed(one.name for one in listed):
        return Outcome(why)
    path = side.write("wiring", listed)
    done = context.run(side.playbook("debug.yml", path, [one.host for one in listed]), "debug")
    compared = context.run_together(
        {f"compare-{one.name}": hidden_states(one.host, one.name, one.port, path) for one in listed}
    )
    rows = []
    for case in CASES:
        found: dict[str, Any] = {"accept_length": measured(done.output, f"gpu-w-{case.name}")}
        if comparison := compared.get(f"compare-w-{case.name}"):
            found["hidden_states"] = verdict(comparison.output)
        check = checks[f"check-{case.name}"]
        rows.append(
            {
                "case": case.name,
                "draft": case.draft,
                "expected": list(case.stopped_by),
                "stopped_by": stopped(found, check, FLOOR),
                "draft_check": re.findall(r"code: ([a-z-]+)", check.output) or ["passes"],
                **found,
            }
        )
    (RUN / "wiring-events.txt").write_text(
        ssh('for f in /var/cache/sglang/w-*/probes/events.jsonl; do echo "== $f"; head -c 3000 $f; done')
        + "\n"
    )
    return Outcome(judge(rows), {"table": rows, "recaps": recaps(done.output)})


def clear(context: Context) -> Outcome:
    listed = instances()
    path = side.write("wiring", listed)
    done = context.run(side.playbook("playbooks/stop.yml", path, [one.host for one in listed]))
    return Outcome(None if done.status == 0 else f"exit status {done.status}")


STEPS = (Step("wiring", 110, "each wrong draft: which check stops it", work, ("production",)),)
AFTER = Step("wiring-stop", 25, "the wiring instances are stopped", clear)
