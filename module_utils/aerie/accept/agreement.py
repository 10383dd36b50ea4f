"""Whether production accepts as debug mode did, prompt by prompt: the record, the comparison, the finding. Pure.

A draft can be wired rightly in eager mode and wrongly inside CUDA graphs, and debug mode runs eager. So debug mode
leaves what its gate measured, and a production server of the same release, draft, steps and prompts must agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..draft.families import GRAPH_BUG_FIRST, GRAPH_BUG_FIXED, GRAPH_FIX, at_least
from ..errors import AerieError, ErrorKind
from .paired import Counted, Difference, paired_difference

DISAGREES = ErrorKind(
    "accept-modes-disagree",
    "Production accepts fewer or more drafts than debug mode did with the same release, draft, steps and prompts. "
    "What differs between the two is CUDA graphs, so the draft most likely gets other layers in them than in "
    "eager mode.",
)

AGREES, DISAGREE, INCONCLUSIVE, NOT_COMPARED = "agrees", "disagrees", "inconclusive", "not compared"
MARGIN = 0.1
"""Accept lengths this far apart count as different: one layer id off cost about 0.10 on Kimi-K2.5 (PR #25454)."""
LEAST_PAIRS = 8
KEPT = 8
NAMES = {
    "release": "release",
    "target": "target",
    "draft": "draft (config, weights or layer ids)",
    "num_steps": "number of steps",
    "num_draft_tokens": "number of draft tokens",
    "topk": "topk",
    "prompts": "prompts",
    "chat_template": "use of the chat template",
    "max_new_tokens": "tokens per answer",
}
"""The parts of an identity. Two runs compare only where all are equal."""


@dataclass(frozen=True)
class Agreement:
    """``state``: agrees, disagrees, inconclusive, not compared. ``sentence`` says it with its figures."""

    state: str
    sentence: str
    difference: Difference | None = None
    record: Mapping[str, Any] | None = None

    def as_result(self) -> dict[str, Any]:
        """What the module returns."""
        found = self.difference
        return {
            "state": self.state,
            "sentence": self.sentence,
            "production": round(found.new, 4) if found else None,
            "debug": round(found.old, 4) if found else None,
            "difference": round(found.value, 4) if found else None,
            "interval": [round(found.low, 4), round(found.high, 4)] if found else None,
            "detectable": round(found.detectable, 4) if found else None,
            "pairs": found.pairs if found else 0,
            "debug_at": str(self.record["at"]) if self.record else "",
        }


def identity(
    gate: Mapping[str, Any], *, release: str, target: str, draft: str, max_new_tokens: int
) -> dict[str, Any]:
    """What must be the same in both runs. ``target`` and ``draft`` are fingerprints; ``gate`` is the gate's result."""
    server, prompts = gate.get("server") or {}, gate.get("prompt_set") or {}
    return {
        "release": release,
        "target": target,
        "draft": draft,
        "num_steps": server.get("num_steps"),
        "num_draft_tokens": server.get("num_draft_tokens"),
        "topk": server.get("topk"),
        "prompts": prompts.get("sha256"),
        "chat_template": prompts.get("chat_template"),
        "max_new_tokens": max_new_tokens,
    }


def make_record(
    who: Mapping[str, Any], gate: Mapping[str, Any], at: str, *, cuda_graphs: bool, hidden: Mapping[str, Any]
) -> dict[str, Any]:
    """What debug mode leaves behind. ``hidden``: verdict of the hidden states' comparison, empty without one."""
    kept = ("prompt_sha256", "completion_tokens", "verify_ct", "degenerate", "output_sha256")
    return {
        "identity": dict(who),
        "at": at,
        "cuda_graphs": cuda_graphs,
        "accept_length": gate.get("accept_length"),
        "rows": [{name: row.get(name) for name in kept} for row in gate.get("rows") or []],
        "hidden_states": {name: hidden[name] for name in ("passed", "state", "verdict") if name in hidden},
    }


def with_record(records: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The records with a new one in front, in place of one of the same identity."""
    return [record, *(one for one in records if one.get("identity") != record["identity"])][:KEPT]


def newest_of(records: Sequence[Mapping[str, Any]], who: Mapping[str, Any]) -> Mapping[str, Any]:
    """The newest record of the same release, target and draft, whatever the gate's settings were; empty if none."""
    parts = ("release", "target", "draft")
    for record in records:
        theirs = record.get("identity") or {}
        if all(theirs.get(name) == who[name] for name in parts):
            return record
    return {}


def agreement(
    records: Sequence[Mapping[str, Any]],
    who: Mapping[str, Any],
    gate: Mapping[str, Any],
    *,
    margin: float = MARGIN,
    confidence: float = 0.95,
    seed: int = 20250101,
) -> Agreement:
    """Compare the gate's result with debug mode's record of the same identity."""
    record = next((one for one in records if one.get("identity") == dict(who)), None)
    if record is None:
        return Agreement(NOT_COMPARED, f"not compared with debug mode: {_why_none(records, who)}")
    new, old = _pairs(gate.get("rows") or [], record.get("rows") or [])
    if len(new) < LEAST_PAIRS:
        why = f"{len(new)} prompts can be paired, {LEAST_PAIRS} are needed"
        return Agreement(INCONCLUSIVE, f"agreement with debug mode is inconclusive: {why}", None, record)
    found = paired_difference(new, old, confidence, seed)
    state = _state(found, margin)
    return Agreement(state, _sentence(state, found, margin, confidence, record), found, record)


def _state(found: Difference, margin: float) -> str:
    """A comparison that could not have seen the margin never says "agrees"."""
    if abs(found.value) > margin and not found.low <= 0 <= found.high:
        return DISAGREE
    if found.detectable <= margin and found.low >= -margin and found.high <= margin:
        return AGREES
    return INCONCLUSIVE


def _sentence(
    state: str, found: Difference, margin: float, confidence: float, record: Mapping[str, Any]
) -> str:
    verdict = {
        AGREES: "production agrees with debug mode",
        DISAGREE: "production does not agree with debug mode",
        INCONCLUSIVE: "agreement with debug mode is inconclusive",
    }[state]
    text = (
        f"{verdict}: accept length {found.new:.4f} against {found.old:.4f} on {record.get('at')}, over {found.pairs} "
        f"prompts in pairs; difference {found.value:+.4f} [{found.low:+.4f}, {found.high:+.4f}] at {confidence:.0%}; "
        f"the smallest difference that could have been detected is {found.detectable:.4f}, the margin {margin:g}"
    )
    return text + ("; more prompts narrow it" if state == INCONCLUSIVE else "")


def _pairs(
    new: Sequence[Mapping[str, Any]], old: Sequence[Mapping[str, Any]]
) -> tuple[list[Counted], list[Counted]]:
    """Both runs' counts of the prompts that both answered with something to verify, in one order."""
    mine, theirs = _by_prompt(new), _by_prompt(old)
    both = [prompt for prompt in mine if prompt in theirs]
    return [mine[prompt] for prompt in both], [theirs[prompt] for prompt in both]


def _by_prompt(rows: Sequence[Mapping[str, Any]]) -> dict[str, Counted]:
    return {
        str(row["prompt_sha256"]): Counted(row["completion_tokens"] - 1, row["verify_ct"])
        for row in rows
        if row.get("prompt_sha256") and row.get("verify_ct") and not row.get("degenerate")
    }


def _why_none(records: Sequence[Mapping[str, Any]], who: Mapping[str, Any]) -> str:
    """The nearest record, by what is different about it."""
    if not records:
        return "debug.yml has left no record on this host"
    others = []
    for record in records:
        theirs = record.get("identity") or {}
        differ = [f"another {text}" for name, text in NAMES.items() if theirs.get(name) != who.get(name)]
        others.append((len(differ), ", ".join(differ)))
    return f"its nearest record is of {min(others)[1]}"


def disagreement(found: Agreement, release: str, captured: Mapping[str, Any]) -> AerieError:
    """The error: the finding, what the release does, what to do. ``captured``: of sglang_draft_check, or empty."""
    record = found.record or {}
    graphs = bool(record.get("cuda_graphs"))
    evidence = [_finding(graphs), *_captured_lines(captured)]
    hidden = record.get("hidden_states") or {}
    if hidden.get("verdict"):
        evidence.append(f"hidden states in debug mode: {hidden['verdict']}")
    buggy = at_least(release, GRAPH_BUG_FIRST) and not at_least(release, GRAPH_BUG_FIXED)
    if buggy:
        evidence.append(
            f"SGLang {GRAPH_BUG_FIRST} to 0.5.10.post1 captures the default layers inside CUDA graphs, whatever the "
            "ids (PR #22836)"
        )
        advice = f"apply the fix {GRAPH_FIX}, or install {GRAPH_BUG_FIXED} or later, or disable CUDA graphs"
    else:
        advice = (
            "ansible-playbook debug.yml -e sglang_server_debug_cuda_graphs=true: the probes then say which layers are "
            "captured while graphs are made; until that is settled, disable the decode CUDA graphs of production"
        )
    if graphs:
        advice = "compare the arguments and patches of the two deployments: playbooks/status.yml shows both"
    return DISAGREES.error(found.sentence, evidence=evidence, next=advice)


def _finding(graphs: bool) -> str:
    if graphs:
        return "both modes ran with CUDA graphs, so something else differs between them"
    return "debug mode ran without CUDA graphs: the draft gets other layers inside them than in eager mode"


def _captured_lines(captured: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, text in (("eager", "eager mode"), ("cuda_graph", "CUDA graphs")):
        layers = (captured.get(name) or {}).get("output_of_layer")
        if layers:
            lines.append(
                f"by the release's rules {text} captures the outputs of layers {', '.join(map(str, layers))}"
            )
    return lines
