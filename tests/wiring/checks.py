"""The checks, each alone and with the others off: what it says about a fault."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sglang_accept_rate
import sglang_draft_check
from ansible.module_utils.aerie.accept.agreement import Agreement, agreement, identity, make_record
from ansible.module_utils.aerie.accept.client import HttpClient
from ansible.module_utils.aerie.accept.gate import judge
from ansible.module_utils.aerie.accept.model_identity import config_fingerprint, fingerprint
from ansible.module_utils.aerie.accept.options import MeasureOptions
from ansible.module_utils.aerie.accept.prompts import PromptSet
from ansible.module_utils.aerie.accept.run import inspect_server, measure
from ansible.module_utils.aerie.accept.tokenize import TokenizerJob
from ansible.module_utils.aerie.draft.case import Settings as DraftSettings
from ansible.module_utils.aerie.draft.check import check
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.hidden.run import Settings, compare, read_reference, record
from ansible.module_utils.aerie.release.child import ChildJob

CPU_ENGINE = Path(__file__).resolve().parent.parent / "cpu_engine"
TRAINING_LAYERS = (1, 3, 5)
STEPS = 3
FLOOR = 2.5
MAX_NEW_TOKENS = 64


@dataclass(frozen=True)
class Outcome:
    """``seen``: the check stops this deployment. ``text``: what it says, for the table's notes."""

    seen: bool
    text: str


def draft_check(target: Path, draft: Path, algorithm: str, release: str) -> Outcome:
    """Files alone, no server."""
    given = {name: option.get("default") for name, option in sglang_draft_check.ARGUMENT_SPEC.items()}
    given |= {
        "target": str(target),
        "draft": str(draft),
        "release": release,
        "algorithm": algorithm,
        "training_layers": list(TRAINING_LAYERS),
        "num_steps": STEPS,
        "eagle_topk": 1,
        "num_draft_tokens": STEPS + 1,
        "context_length": 1024,
    }
    report = check(DraftSettings.from_params(given))
    codes = [finding.code for finding in report.problems]
    return Outcome(bool(codes), ", ".join(codes) or "no problem")


def make_reference(python: Path, pair: Path, ids: Sequence[int], out: Path) -> None:
    """The truth of the pair's maker as a dump of training: it never saw a server."""
    words = [f"--ids={','.join(map(str, ids))}", f"--layers={','.join(map(str, TRAINING_LAYERS))}"]
    subprocess.run(
        [python, CPU_ENGINE / "reference.py", pair, out, *words], check=True, stdout=subprocess.DEVNULL
    )


def record_reference(url: str, probes: Path, ids: Sequence[int], out: Path, python: Path) -> None:
    """The states of a server that is known to be right, with what its draft's fc made of them."""
    settings = Settings(str(probes), None, ChildJob(str(python)), TRAINING_LAYERS)
    out.write_bytes(record(HttpClient(url), ids, settings, {"label": "known to be right"})[0])


def hidden_states(url: str, probes: Path, reference: Path, python: Path) -> Outcome:
    """A server in debug mode and the reference."""
    settings = Settings(str(probes), None, ChildJob(str(python)), TRAINING_LAYERS)
    read = read_reference(str(reference), settings.child)
    verdict, _ = compare(HttpClient(url), read, str(reference), settings)
    return Outcome(not verdict.matched, f"{verdict.state}: {verdict.sentence}")


def measured(
    url: str, prompts: PromptSet, ids: Sequence[Sequence[int]], target: Path, python: Path
) -> dict[str, Any]:
    """What the gate measures, without a floor."""
    options = MeasureOptions(
        num_prompts=len(ids), max_new_tokens=MAX_NEW_TOKENS, num_steps=STEPS, num_draft_tokens=STEPS + 1
    )
    client = HttpClient(url)
    figures = measure(client, ids, options, inspect_server(client, options))
    sglang_accept_rate.add_prompts(figures, prompts, TokenizerJob(str(python), str(target)))
    return figures


def accept_floor(figures: dict[str, Any]) -> Outcome:
    """The measured figures against the floor."""
    try:
        text = judge(figures, FLOOR, {})[0]
    except AerieError as error:
        return Outcome(True, error.what)
    return Outcome(False, text)


def agrees(
    debug: dict[str, Any], production: dict[str, Any], target: Path, draft: Path, release: str
) -> Agreement:
    """Production against what debug mode measured."""
    marks = {"target": config_fingerprint(target), "draft": fingerprint(draft)}
    whose = [
        identity(one, release=release, max_new_tokens=MAX_NEW_TOKENS, **marks) for one in (debug, production)
    ]
    record = make_record(whose[0], debug, "debug mode", cuda_graphs=False, hidden={})
    return agreement([record], whose[1], production)
