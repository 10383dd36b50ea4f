"""Results in sentences, and as lines for the inventory."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from .estimates import Estimate
from .settings import Setting

Results = Mapping[str, Any]


def judged(speedup: Estimate) -> str:
    """``gains``, ``loses`` or ``same``."""
    return "gains" if speedup.low > 1.0 else "loses" if speedup.high < 1.0 else "same"


def benchmark_verdict(results: Results) -> list[str]:
    """Speculation against none, in a sentence; then how far it can be trusted."""
    base = _one(results, "base")
    if base is None or base["status"] != "measured":
        return ["Speculation was not measured: its server failed.", *_failures(results)]
    parts: dict[str, list[str]] = {"gains": [], "same": [], "loses": []}
    widest = 0.0
    for size in results["batch_sizes"]:
        raw = base["batches"].get(str(size), {}).get("speedup")
        if raw is None:
            continue
        speedup = Estimate.from_dict(raw)
        widest = max(widest, speedup.half_width)
        text = f"at batch {size}"
        parts[judged(speedup)].append(
            f"x {speedup} {text}" if judged(speedup) == "gains" else f"{text} (x {speedup})"
        )
    said = []
    if parts["gains"]:
        said.append("gives " + _listed(parts["gains"]))
    if parts["same"]:
        said.append("makes no difference that could be seen " + _listed(parts["same"]))
    if parts["loses"]:
        said.append("loses " + _listed(parts["loses"]))
    if not said:
        return ["The baseline was not measured, so nothing can be said.", *_failures(results)]
    sentences = [f"Speculation {_listed(said)}."]
    sentences.append(f"Differences below {widest:.1%} could not have been seen.")
    return [*sentences, *_reduces(results), *_drift(results), *_failures(results)]


def tune_verdict(results: Results) -> list[str]:
    """Which setting, how much it gives, how sure that is."""
    name = results["recommended"]
    if name is None:
        return ["No setting could be measured.", *_failures(results)]
    size = str(results["objective"])
    chosen = next(s for s in results["settings"] if s["name"] == name and s["status"] == "measured")
    at = chosen["batches"][size]
    rate = Estimate.from_dict(at["rate"])
    if chosen["kind"] == "baseline":
        rival = _fastest(results, lambda s: s["steps"] > 0)
        speedup = Estimate.from_dict(rival["batches"][size]["speedup"]) if rival else None
        first = f"Speculation should be off at batch {size}: {rate.text(1)} tok/s without it"
        first += f"; the best chain ({rival['name']}) gives x {speedup}." if rival else "."
    else:
        first = f"{name[0].upper()}{name[1:]} at batch {size}: {rate.text(1)} tok/s"
        if at["speedup"]:
            first += f", x {Estimate.from_dict(at['speedup'])} against no speculation"
        if at["over_base"]:
            first += f", x {Estimate.from_dict(at['over_base'])} against the inventory's own setting"
        first += "."
    sentences = [first]
    if chosen["kind"] == "base":
        sentences.append("No other setting was clearly faster than the one in the inventory.")
    if at["speedup"] and judged(Estimate.from_dict(at["speedup"])) == "same":
        sentences.append("Against no speculation that is no difference that could be seen.")
    ties = _ties(results, chosen)
    if ties:
        sentences.append(f"Not to be told from it: {', '.join(ties)}.")
    moved = _drift(results)
    if not_quiet(results):
        sentences.insert(0, "The machine was not quiet: these speeds decide nothing, measure again.")
    return [*sentences, *_trust(results), *_reduces(results), *moved, *_failures(results)]


TO_TRY = {
    "verify": "fewer steps, since each verifies one token more (tune.yml finds how many); on PCIe the NCCL presets and "
    "custom all-reduce, which act on this part",
    "draft": "fewer steps; a draft with a smaller vocabulary; CUDA graphs for the draft where they are off",
    "extend": "a release with a faster draft-extend, or fewer steps",
    "rest": "overlap scheduling where it is off, a larger decode_log_interval, faster or less busy CPU cores: this "
    "time passes between the forwards",
}


PART_NAMES = {"draft": "draft", "verify": "verify", "extend": "draft-extend", "rest": "the rest"}


def profile_verdict(results: Results) -> list[str]:
    """The bottleneck at the smallest batch size, what to try, and how it moves with the batch."""
    batches = results["profile"]
    if not batches:
        return ["No decode cycle was measured.", *_failures(results)]
    first = batches[0]
    part = largest_part(first)
    named = PART_NAMES[part][0].upper() + PART_NAMES[part][1:]
    share = first["parts"][part]["share"]
    sentences = [
        f"{named} takes {100 * share:.0f} % of a {first['cycle_ms']:.2f} ms cycle at batch {first['batch']}.",
        f"Try: {TO_TRY[part]}.",
    ]
    for other in batches[1:]:
        its = largest_part(other)
        sentences.append(
            f"At batch {other['batch']} it is {PART_NAMES[its]} with "
            f"{100 * other['parts'][its]['share']:.0f} % of {other['cycle_ms']:.2f} ms."
        )
    return [*sentences, _communication(results.get("trace")), *_failures(results)]


def _communication(trace: Mapping[str, Any] | None) -> str:
    """A share only where a torch trace shows it."""
    if not trace:
        return (
            "How much of it is communication these timers cannot tell: that takes a torch trace "
            "(sglang_tune_trace_steps: 10)."
        )
    if trace["share"] is None:
        return f"A torch trace was asked for, and no share of communication can be claimed: {trace['why']}."
    ranks = len(trace["ranks"])
    spread = f"{100 * trace['share_low']:.0f} to {100 * trace['share_high']:.0f} %"
    said = (
        f"Communication is {100 * trace['share']:.0f} % of the time in which a kernel runs "
        f"({trace['steps']} cycles at batch {trace['batch']}, torch trace"
        + (f", {ranks} ranks, {spread}" if ranks > 1 else "")
        + "; waiting for other ranks is in it)"
    )
    if trace["share_beside"] >= 0.005:
        said += f", and runs beside computing for another {100 * trace['share_beside']:.0f} %"
    worth = trace["share"] >= WORTH_TRYING
    return said + ("; tune.yml tries NCCL presets and custom all-reduce, which act on it." if worth else ".")


WORTH_TRYING = 0.1
"""Share of communication from which it is worth a restart to try something about it."""


def largest_part(batch: Mapping[str, Any]) -> str:
    """The part of a cycle that takes most of it."""
    return max(batch["parts"], key=lambda part: batch["parts"][part]["share"])


def _trust(results: Results) -> list[str]:
    """How many starts it took and how far predictions were off."""
    chains = [length for length in results["lengths"] if length > 0]
    some = "1 chain length was" if results["starts"] == 1 else f"{results['starts']} chain lengths were"
    sentences = [f"{some} started besides the inventory's, of {len(chains)}."]
    errors = [abs(p["error"]) for p in results["predictions"] if p["error"] is not None]
    if errors:
        sentences.append(
            f"Predicted speeds were off by {max(errors):.1%} at most (checked on {len(errors)})."
        )
    lengths = [
        abs(p["accept_length_error"]) for p in results["predictions"] if p["accept_length_error"] is not None
    ]
    if lengths:
        sentences.append(f"Predicted accept lengths were off by {max(lengths):.1%} at most.")
    return sentences


def _reduces(results: Results) -> list[str]:
    """Where custom all-reduce was on and NCCL did the work: SGLang only warns of that."""
    names: dict[str, list[str]] = {}
    for setting in results["settings"]:
        said = (setting["all_reduce"] or {}).get("said", "")
        if said.startswith("NCCL, though"):
            names.setdefault(said, []).append(setting["name"])
    return [f"All-reduce ran through {said} ({', '.join(found)})." for said, found in names.items()]


def _ties(results: Results, chosen: Mapping[str, Any]) -> list[str]:
    """Settings whose paired comparison with the chosen one includes 1."""
    return [
        s["name"]
        for s in results["settings"]
        if s is not chosen
        and s["kind"] != "again"
        and s["over_recommended"] is not None
        and judged(Estimate.from_dict(s["over_recommended"])) == "same"
    ]


def _fastest(results: Results, wanted: Any) -> Mapping[str, Any] | None:
    size = str(results["objective"])
    found = [
        s
        for s in results["settings"]
        if s["status"] == "measured" and size in s["batches"] and s["kind"] != "again" and wanted(s)
    ]
    return max(found, key=lambda s: s["batches"][size]["rate"]["value"]) if found else None


def _one(results: Results, kind: str) -> Mapping[str, Any] | None:
    return next((s for s in results["settings"] if s["kind"] == kind), None)


def not_quiet(results: Results) -> bool:
    """Whether the first setting was so much faster or slower at the end that no speed of the run decides anything."""
    return results["drift"] is not None and "not quiet" in results["drift"]["text"]


def _drift(results: Results) -> list[str]:
    if results["drift"] is None:
        return ["Drift is unknown: the first setting was not measured again at the end."]
    text = results["drift"]["text"]
    return [text[0].upper() + text[1:] + "."]


def _failures(results: Results) -> list[str]:
    return [
        f"Failed: {s['name']} ({s['failure'].get('code') or 'no code'})."
        for s in results["settings"]
        if s["status"] == "failed"
    ]


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def floor_for(floor: float, before: float | None, after: float | None) -> float:
    """A floor of the accept length for another chain, as far below what it gains as the inventory's was.

    floor: the inventory's, 0 for none. before, after: accept lengths of its setting and of the other one. The bonus
    token is left out, so that a floor stays above 1. 0: not known, no floor.
    """
    if floor <= 1.0 or not before or not after or before <= 1.0:
        return 0.0
    return max(0.0, math.floor(100 * (1.0 + (floor - 1.0) * (after - 1.0) / (before - 1.0))) / 100)


def variables_of(base: Setting, chosen: Setting, floor: float) -> dict[str, Any]:
    """The inventory's variables that have to change for ``chosen``; whole values, since Ansible replaces them.

    floor: for its accept length, where the chain is another one.
    """
    found: dict[str, Any] = {}
    if dict(chosen.speculative) != dict(base.speculative):
        found["sglang_server_speculative"] = dict(chosen.speculative)
    if chosen.steps not in (0, base.steps):
        found["sglang_server_min_accept_length"] = floor
    if dict(chosen.arguments) != dict(base.arguments):
        found["sglang_server_arguments"] = dict(chosen.arguments)
    if dict(chosen.environment) != dict(base.environment):
        found["sglang_server_environment"] = dict(chosen.environment)
    return found


def inventory_lines(base: Setting, chosen: Setting, variables: Mapping[str, Any]) -> str:
    """The same as YAML, with a word on what was taken out."""
    if not variables:
        return "# Nothing to change: the inventory's own setting stays.\n"
    lines = as_yaml(variables).splitlines()
    gone = sorted(set(base.environment) - set(chosen.environment))
    if gone:
        lines.append(f"# no longer set: {', '.join(gone)}")
    return "\n".join(lines) + "\n"


def as_yaml(variables: Mapping[str, Any]) -> str:
    """Variables as people write them in an inventory."""
    lines = []
    for name, value in variables.items():
        if not isinstance(value, Mapping) or not value:
            lines.append(f"{name}: {_scalar(value)}")
            continue
        lines.append(f"{name}:")
        lines += [f"  {key}: {_scalar(one)}" for key, one in value.items()]
    return "".join(line + "\n" for line in lines)


def _scalar(value: Any) -> str:
    """JSON is YAML, and leaves no doubt about types."""
    return json.dumps(value, ensure_ascii=False)
