"""The measured table as a page of the docs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

RECORDED = "recorded states"
CHECKS = ("draft check", "hidden states", RECORDED, "accept floor", "agreement")
START = "start fails"
COLUMNS = (*CHECKS, START)

HEAD = """\
# Which check sees which fault

A draft that is wired wrongly leaves the server healthy and its text right. Checks look for it from several sides,
and a start can fail with an error that names the cause. `make wiring` fills the table: each fault is made out of the
clockwork pair (tests/cpu_engine) and served by a real SGLang {release} on the CPU in debug mode; the first two rows
and the last in production mode too. Every check is tried alone, with the others off. Kernels are stand-ins there and
there are no CUDA graphs, so the last fault, other layers inside CUDA graphs than in eager mode, is played by a
test-only patch that acts in verifies of the production mode alone. Last filled on {date}.

**sees**: this check alone stops the deployment. **–**: it passed, so it cannot see this fault. "not tried":
for the agreement, since both modes run the same code on a CPU there; else the server did not start.
"""
WHY = """\
## Why not every check sees every fault

- **Draft check** (`sglang_draft_check`, before anything is stopped) reads configs, headers and vocabulary maps.
  What is in the weights it cannot judge (the order inside `fc`, whose target the draft was trained for), nor
  what a release does at run time against its own rules.
- **Hidden states** (`sglang_hidden_states`, in debug mode, against a dump of training) sees what the target hands
  over, in the mode that the server runs in. What the draft makes of it (`fc`, `d2t`, its weights) it does not see,
  and what happens inside CUDA graphs neither, since debug mode runs without them.
- **Recorded states** is the same check against a reference that was recorded from a server known to be right. That
  also holds what the draft's `fc` made of the states; behind `fc` it sees nothing.
- **Accept floor** (`sglang_accept_rate`) sees everything that makes the draft useless, and nothing of why. This
  pair's draft is right or useless, nothing between, so the floor sees every fault here. A trained draft may lose
  only a part to a fault, and a loss of a tenth stays above a floor that leaves room for harder prompts.
- **Agreement** (`sglang_accept_agreement`) sees what differs between debug mode and production, and only that:
  a fault that both modes share makes them agree. It was tried without the floor, which would have stopped debug
  mode before.
- **Start fails**: the server ended by itself. The text is the last error in its log, with the advice that the
  road gives.
"""


def write(path: Path, facts: Mapping[str, Any]) -> None:
    """Write the page."""
    path.write_text(page(facts), encoding="utf-8")


def page(facts: Mapping[str, Any]) -> str:
    """Markdown: the table, what each check said, and why a check cannot see what it does not."""
    lines = [HEAD.format(**facts)]
    lines += [f"| fault | accept length | {' | '.join(COLUMNS)} |", "| --- | --- |" + " --- |" * len(COLUMNS)]
    lines += [_line(row) for row in facts["rows"]]
    waiting = [row["what"] for row in facts["rows"] if len(row["checks"]) == 1]
    if waiting:
        lines += [
            "",
            f"**Not yet tried with a server**: {'; '.join(waiting)}. Only their draft check is in the table.",
        ]
    lines += ["", WHY, "## What each check said", ""]
    for row in facts["rows"]:
        lines += [f"**{row['what']}**", ""]
        lines += [f"- {name}: {row['checks'][name]['text']}" for name in COLUMNS if name in row["checks"]]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _line(row: Mapping[str, Any]) -> str:
    length = "" if row["accept_length"] is None else f"{row['accept_length']:.4f}"
    return f"| {row['what']} | {length} | {' | '.join(_cell(row, name) for name in COLUMNS)} |"


def _cell(row: Mapping[str, Any], name: str) -> str:
    found = row["checks"].get(name)
    if name == START and len(row["checks"]) > 1:
        return "**sees**" if found else "–"
    return "not tried" if found is None else "**sees**" if found["seen"] else "–"
