"""Stage 5, by the project's own playbooks: benchmark.yml, profile.yml and tune.yml on the card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from record import REHEARSAL, RUN, SIDE_CARD

from . import side
from .core import Context, Outcome, Step, passed, playbook, tail

LOAD = {
    "sglang_tune_prompts_file": "/srv/models/prompts.json",
    "sglang_tune_prompts": 10,
    # As the gate's: a model this small falls into loops soon after (4 of 10 answers at 128 tokens, seen on an H200).
    "sglang_tune_max_new_tokens": 64,
    # A server was seen at 1 or at 1.5 times its speed for a second at a time, so a load of half a second is no figure.
    "sglang_tune_least_seconds": 15 if not REHEARSAL else 0,
    "sglang_tune_batch_sizes": [1, 8] if not REHEARSAL else [1],
    "sglang_tune_nccl_presets": [],
    "sglang_tune_custom_all_reduce": "skip",
    "sglang_tune_reports_dir": str(RUN / "reports"),
}

# With a card for side instances, the sweep has a server of its own there; the first card goes on with other steps.
SWEPT = side.Instance("swept", 140)

# What a sweep still does when it starts no further setting: the last one's load, the way back, the report.
AFTER_S = 120


def book(name: str, **more: Any) -> Callable[[Context], Outcome]:
    """One of the measuring playbooks under the same load, and what it said at its end."""

    def work(context: Context) -> Outcome:
        variables = {**LOAD, **more}
        if name == "tune":
            variables["sglang_tune_budget_minutes"] = max(1, int((context.left() - AFTER_S) / 60))
        words = playbook(f"playbooks/{name}.yml", **variables)
        if name == "tune" and SIDE_CARD:
            if why := side.seed([SWEPT.name]):
                return Outcome(why)
            path = side.write(SWEPT.name, [SWEPT])
            words = side.playbook(f"playbooks/{name}.yml", path, [SWEPT.host], **variables)
        done = context.run(words)
        why = passed(done)
        return Outcome(
            why, {"verdict": verdicts(done.output), **({"tail": tail(done.output)} if why else {})}
        )

    return work


def verdicts(output: str) -> list[str]:
    """The sentences that the playbook ends with, and where its report is."""
    found: list[str] = []
    inside = False
    for line in output.splitlines():
        if line.startswith("TASK ["):
            inside = line.rstrip(" *").endswith("The verdict]")
        elif inside and (text := line.strip()) and not text.startswith(("ok:", "skipping:", "msg:", "PLAY")):
            found.append(text.removeprefix("- ").strip("'\""))
        if line.startswith("PLAY RECAP"):
            inside = False
    return found


STEPS: tuple[Step, ...] = (
    Step(
        "profile",
        170,
        "profile.yml: where a cycle goes, and from a torch trace how much of it is communication",
        book("profile", sglang_tune_trace_steps=0 if REHEARSAL else 10),
        ("production",),
    ),
    Step("benchmark", 240, "benchmark.yml: speculation against none", book("benchmark"), ("production",)),
    Step(
        "tune",
        240,
        "tune.yml: predict, then confirm, as far as its time goes",
        book("tune"),
        ("production",),
    ),
)
