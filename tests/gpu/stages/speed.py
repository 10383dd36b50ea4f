"""Stage 5: what speculation gains, which chain is best, what graphs are worth, and Aerie against a start by hand.

All settings stand side by side on the card, each an instance of its own, and take turns of a second; so one start of
the machine, the same clock and the same neighbours for all. Idle servers sleep (`sleep_on_idle`), since a scheduler
that polls takes a processor.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import load
from record import HERE, REHEARSAL, RUN, STATE, on_host

from . import side
from .core import Context, Outcome, Step, arguments, first_failure, recaps, tail

# A rehearsal on two cores starts a few chains and asks for little.
CHAINS = tuple(int(one) for one in os.environ.get("AERIE_GPU_CHAINS", "1,2,3,4,5,6,7,8,9,10").split(","))
HAND_PORT = 30900
# The starts of `time-to-ready` have ports of their own: they may stand beside `speed`'s server by hand.
PAIR_PORT = 30901
BATCHES = (1, 8, 32) if not REHEARSAL else (1, 8)
TOKENS = 64 if not REHEARSAL else 16
# Rounds by batch size: the search is judged at batch 1, where a round of twelve servers takes two seconds.
PASSES = {1: 400, 8: 6, 32: 3} if not REHEARSAL else {1: 6, 8: 1}
# Without graphs a token takes ten times as long: fewer of them, and of the servers with which these two are compared.
EAGER_TOKENS, EAGER_PASSES = (32, 3) if not REHEARSAL else (8, 1)
# The closer comparison of two servers: seconds kept for it, and the most rounds, of some two seconds each.
CLOSER_S = 20 if not REHEARSAL else 10
CLOSER_PASSES = 80 if not REHEARSAL else 2
# The same server started by hand is compared with this one.
TWIN = "s5"


def speculative(steps: int) -> dict[str, Any]:
    return {"algorithm": "EAGLE3", "num_steps": steps, "eagle_topk": 1, "num_draft_tokens": steps + 1}


def setting(**more: Any) -> dict[str, Any]:
    """Variables of one instance: room for 32 requests, and no floor, which a short chain could not reach."""
    return {
        "sglang_server_max_running_requests": 32,
        "sglang_server_min_accept_length": 0.0,
        "sglang_server_hidden_states_reference": "",
        "sglang_server_arguments": arguments(
            **{"cuda_graph_max_bs_decode": 32, "sleep_on_idle": True, **more}
        ),
    }


def chains() -> list[side.Instance]:
    return [
        side.Instance(
            f"s{steps}", 100 + steps, {**setting(), "sglang_server_speculative": speculative(steps)}
        )
        for steps in CHAINS
    ]


def eager() -> list[side.Instance]:
    return [
        side.Instance(
            "s5-eager",
            121,
            {
                **setting(disable_cuda_graph=True, cuda_graph_max_bs_decode=None),
                "sglang_server_speculative": speculative(5),
            },
        )
    ]


def baselines() -> list[side.Instance]:
    return [
        side.Instance("base", 120, setting()),
        side.Instance("base-eager", 122, setting(disable_cuda_graph=True, cuda_graph_max_bs_decode=None)),
    ]


def everybody() -> list[side.Instance]:
    return [*chains(), *eager(), *baselines()]


def up(context: Context) -> Outcome:
    """Start them all: chains and the eager one by production.yml, the baselines by baseline.yml, at the same time."""
    listed = everybody()
    if why := side.seed(one.name for one in listed):
        return Outcome(why)
    path = side.write("speed", listed)
    spec = [one.host for one in (*chains(), *eager())]
    done = context.run_together(
        {
            "production": side.playbook("production.yml", path, spec),
            "baseline": side.playbook("playbooks/baseline.yml", path, [one.host for one in baselines()]),
        }
    )
    facts = {name: {"recaps": recaps(one.output), "seconds": one.seconds} for name, one in done.items()}
    failed = {name: tail(one.output, 40) for name, one in done.items() if one.status != 0}
    return Outcome(f"failed: {', '.join(failed)}" if failed else None, {**facts, "tails": failed})


def measure(context: Context) -> Outcome:
    """Turns over all servers that answer, the one by hand among them."""
    hand = on_host(["by-hand", f"sglang-{TWIN}.service", str(HAND_PORT)], 170)
    ports = {one.name: one.port for one in everybody()}
    if hand.get("ready_s"):
        ports["by-hand"] = HAND_PORT
    answering = {name: port for name, port in ports.items() if _answers(port)}
    prompts = json.loads((HERE / "speed-prompts.json").read_text())
    until = context.deadline - 25
    eager = {name: port for name, port in answering.items() if name.endswith("-eager")}
    twins = {name: port for name, port in answering.items() if f"{name}-eager" in eager}
    graphs = load.interleaved(
        {**eager, **twins}, prompts, BATCHES, passes=EAGER_PASSES, tokens=EAGER_TOKENS, until=until - CLOSER_S
    )
    fast = {name: port for name, port in answering.items() if name not in eager}
    entries = [
        entry
        # The longest last: what time is left is its own.
        for batch in reversed(BATCHES)
        for entry in load.interleaved(
            fast, prompts, (batch,), passes=PASSES[batch], tokens=TOKENS, until=until - CLOSER_S
        )
    ]
    # The goal of 0.99 wants a narrow interval: many more turns of these two.
    pair = {name: port for name, port in answering.items() if name in (TWIN, "by-hand")}
    entries += load.interleaved(
        pair,
        prompts,
        BATCHES[:2],
        passes=CLOSER_PASSES,
        tokens=TOKENS,
        until=until,
        first=max(PASSES.values()),
    )
    (RUN / "speed.json").write_text(json.dumps(entries))
    (RUN / "graphs.json").write_text(json.dumps(graphs))
    searched = context.run(
        [controller_python(), "tests/gpu/predicted.py", str(RUN / "speed.json")], "predicted"
    )
    on_host(["by-hand-stop", str(HAND_PORT)], 30)
    facts = {
        "silent": sorted(set(ports) - set(answering)),
        "by_hand": hand,
        **findings(entries, graphs),
        "tune": searches(searched.output),
    }
    ratio = (facts["aerie_against_by_hand"].get("8") or {}).get("interval")
    whys = [
        judge_search(facts["tune"]) if not REHEARSAL or "1" not in facts["tune"] else None,
        f"did not answer: {', '.join(facts['silent'])}" if facts["silent"] else None,
        None if REHEARSAL or ratio is None or ratio[1] >= 0.99 else f"throughput against by hand: {ratio}",
    ]
    return Outcome(first_failure(whys), facts)


def controller_python() -> str:
    """Python with Ansible and scipy: the controller's environment, or in a rehearsal this checkout's."""
    own = STATE / "controller/bin/python"
    return str(own) if own.exists() else sys.executable


def searches(output: str) -> dict[str, Any]:
    """What `predicted.py` printed."""
    try:
        return dict(json.loads(output.splitlines()[-1]))
    except (ValueError, IndexError):
        return {"error": tail(output, 8)}


def judge_search(found: dict[str, Any]) -> str | None:
    """The goals of the search at batch 1: the best chain or one of its ties, few starts, predictions within 5 %."""
    one = found.get("1")
    if not one:
        return f"the search was not tried: {found.get('error')}"
    return first_failure(
        (
            None
            if one["found_it"]
            else f"tune would choose {one['chosen']}, {one['exhaustive_best']} is best",
            None if len(one["started"]) <= one["allowance"] else f"{len(one['started'])} starts",
            None if one["largest_off"] <= 0.05 else f"a prediction is off by {one['largest_off']:.1%}",
        )
    )


def _answers(port: int) -> bool:
    try:
        load.generate(port, "def ", 4, timeout=20)
    except OSError:
        return False
    return True


def findings(entries: list[dict[str, Any]], graphs: list[dict[str, Any]]) -> dict[str, Any]:
    """The tables of a measurement: rates, gains over the baseline, the best chain, graphs on against off (from turns of
    their own, ``graphs``), by hand."""
    servers = sorted({entry["server"] for entry in entries})
    table = {
        str(batch): {server: found for server in servers if (found := load.rates(entries, server, batch))}
        for batch in BATCHES
    }
    best: dict[str, Any] = {}
    for batch, rows in table.items():
        swept = {name: row for name, row in rows.items() if name[:1] == "s" and name[1:].isdigit()}
        if swept:
            name = max(swept, key=lambda one: swept[one]["tok_s"])
            best[batch] = {
                "chain": name,
                "against_baseline": load.compare(entries, name, "base", int(batch)),
                "against_five_steps": load.compare(entries, name, "s5", int(batch)),
            }
    return {
        "rates": table,
        "best": best,
        "gain": {str(b): load.compare(entries, "s5", "base", b) for b in BATCHES},
        "graphs": {
            str(b): {
                "speculative": load.compare(graphs, "s5", "s5-eager", b),
                "baseline": load.compare(graphs, "base", "base-eager", b),
            }
            for b in BATCHES
        },
        "aerie_against_by_hand": {str(b): load.compare(entries, TWIN, "by-hand", b) for b in BATCHES},
        "histograms": {
            server: _histogram([e for e in entries if e["server"] == server]) for server in servers
        },
    }


def _histogram(entries: list[dict[str, Any]]) -> list[int]:
    rows = [entry["histograms"] for entry in entries if entry["batch"] == 1 and entry["histograms"]]
    width = max((len(row) for row in rows), default=0)
    return [sum(row[i] for row in rows if i < len(row)) for i in range(width)]


def down(context: Context) -> Outcome:
    listed = everybody()
    done = context.run(
        side.playbook("playbooks/stop.yml", side.write("speed", listed), [one.host for one in listed])
    )
    return Outcome(None if done.status == 0 else f"exit status {done.status}")


def time_to_ready(context: Context) -> Outcome:
    """Rounds of starts at the same moment: by Aerie's unit, of the same command by hand, and so from its own tree."""
    return started(context, ["hand", "tree"])


def ready_parts(context: Context) -> Outcome:
    """The same with parts of the unit's sandbox: what each of them costs a start."""
    return started(context, ["hand", "bare", "filter", "mounts"])


def started(context: Context, ways: list[str]) -> Outcome:
    words = ["starts", "sglang-default.service", str(PAIR_PORT), "6", f"{context.left():.0f}", ",".join(ways)]
    judged = judge_ready(on_host(words, context.left()))
    # How long a double takes says nothing; that there were rounds does.
    return Outcome(None, judged.facts) if REHEARSAL and "ratio" in judged.facts else judged


def judge_ready(found: dict[str, Any]) -> Outcome:
    """At most 1.05 times the start by hand, over all rounds."""
    rounds = [one["seconds"] for one in found.get("rounds", [])]
    ways = list(dict.fromkeys(way for one in rounds for way in one))
    ratio = _over(rounds, "unit", "hand")
    if ratio is None:
        return Outcome(f"no round was measured: {found.get('error')}", found)
    against = {way: _over(rounds, way, "hand") for way in ways if way != "hand"}
    facts = {**found, "ratio": ratio, "against by hand": against}
    return Outcome(None if ratio <= 1.05 else f"{ratio:.3f} times the start by hand", facts)


def _over(rounds: list[dict[str, Any]], one: str, other: str) -> float | None:
    """Ratio of the sums, over the rounds that have both."""
    whole = [(row[one], row[other]) for row in rounds if row.get(one) and row.get(other)]
    return round(sum(a for a, _ in whole) / sum(b for _, b in whole), 4) if whole else None


STEPS = (
    Step("speed-up", 150, "ten chains, baseline and eager twins, side by side", up, ("production",)),
    Step("speed", 250, "batch 1, 8, 32 in turns, by hand among them", measure, ("speed-up",)),
)
AFTER = Step("speed-stop", 15, "the speed instances are stopped", down)
READY = (
    Step("time-to-ready", 80, "starts by Aerie's unit and by hand, in turns", time_to_ready, ("production",)),
    Step("ready-parts", 80, "starts with parts of the unit's sandbox", ready_parts, ("production",)),
)
