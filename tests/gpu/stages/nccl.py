"""NCCL's presets at TP 2, in profile mode, side by side on both cards and measured in turns: what the verify takes."""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import time
from typing import Any

import load
from record import HERE, RUN, ssh

from . import side
from .core import Context, Outcome, Step, first_failure, group_vars, recaps
from .two import INVENTORY_TWO, beside, multicast_off, playbook

# Name, NCCL variables, and whether custom all-reduce is on. NVLink between two cards: no preset for PCIe is tried.
ALL_PRESETS: tuple[tuple[str, dict[str, str], bool], ...] = (
    ("n-default", {}, False),
    ("n-ll-ring-sys", {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS"}, False),
    ("n-ll128", {"NCCL_PROTO": "LL128"}, False),
    # Plain Tree has no all-gather, and logits are gathered.
    ("n-tree", {"NCCL_ALGO": "allreduce:tree"}, False),
    ("n-nvl", {"NCCL_P2P_LEVEL": "NVL"}, False),
    ("c-default", {}, True),
    ("c-ll-ring-sys", {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS"}, True),
)

# Status, whose words name the all-reduce that runs, and the stop.
AFTER_S = 35

ONLY = tuple(filter(None, os.environ.get("AERIE_GPU_PRESETS", "").split(",")))
PRESETS = tuple(preset for preset in ALL_PRESETS if not ONLY or preset[0] in ONLY)


def presets() -> list[side.Instance]:
    variables = group_vars(INVENTORY_TWO)
    return [
        side.Instance(
            name,
            200 + number,
            {
                "sglang_server_environment": {**variables["sglang_server_environment"], **nccl},
                "sglang_server_arguments": {
                    **variables["sglang_server_arguments"],
                    "disable_custom_all_reduce": not custom,
                    "sleep_on_idle": True,
                },
                "sglang_server_min_accept_length": 0.0,
            },
        )
        for number, (name, nccl, custom) in enumerate(PRESETS)
    ]


def nccl(context: Context) -> Outcome:
    """NCCL's presets in profile mode, side by side on both cards, in turns: what the verify takes."""
    listed = presets()
    if why := side.seed(one.name for one in listed):
        return Outcome(why)
    path = side.write("presets", listed)
    # Not profile.yml, which measures by itself and brings production back.
    hosts = [one.host for one in listed]
    done = context.run(
        [*beside("playbooks/deploy.yml", path, hosts), "-e", "sglang_server_mode=profile"], "road"
    )
    ports = {one.name: one.port for one in listed if recaps(done.output).get(one.host, {}).get("failed") == 0}
    off = [why for name in ports if (why := multicast_off(f"sglang-{name}.service"))]
    prompts = json.loads((HERE / "prompts.json").read_text())
    since = time.time()
    entries = (
        load.interleaved(ports, prompts, (1, 8), passes=20, tokens=64, until=context.deadline - AFTER_S)
        if ports
        else []
    )
    (RUN / "nccl.json").write_text(json.dumps(entries))
    status = context.run(playbook("playbooks/status.yml"), "status")
    found = cycles(list(ports), since)
    facts = {
        "verdict": verdict(
            {name: one.get("verify_by_turn", []) for name, one in found.items() if name in ports}
        ),
        "rates": {str(b): {name: load.rates(entries, name, b) for name in ports} for b in (1, 8)},
        "against_default": {
            name: load.compare(entries, name, "n-default", 1) for name in ports if name != "n-default"
        },
        "cycles": found,
        "all_reduce": re.findall(r"\S+: all-reduce: .*", status.output),
        "silent": sorted({one.name for one in listed} - set(ports)),
    }
    stop = context.run(beside("playbooks/stop.yml", path, hosts), "stop")
    return Outcome(
        first_failure(
            [
                *off,
                f"did not start: {facts['silent']}" if facts["silent"] else None,
                None if stop.status == 0 else "the presets were not stopped",
            ]
        ),
        facts,
    )


def against(mine: list[float], other: list[float]) -> dict[str, Any] | None:
    """Ratio of two presets' verify times with a 95 % bootstrap interval over their turns; under 1 is faster."""
    if len(mine) < 3 or len(other) < 3:
        return None
    rng = random.Random(0)
    drawn = sorted(
        statistics.fmean(rng.choices(mine, k=len(mine))) / statistics.fmean(rng.choices(other, k=len(other)))
        for _ in range(2000)
    )
    ratio = statistics.fmean(mine) / statistics.fmean(other)
    return {"ratio": round(ratio, 4), "interval": [round(drawn[49], 4), round(drawn[1949], 4)]}


def verdict(turns: dict[str, list[float]]) -> dict[str, Any]:
    """Each preset's verify time at batch 1 against the default of its kind, custom all-reduce against NCCL, and what
    that comes to in a sentence."""
    rows = {
        name: found
        for name, mine in turns.items()
        if name not in ("n-default", "c-default")
        and (found := against(mine, turns.get(f"{name[0]}-default", [])))
    }
    if custom := against(turns.get("c-default", []), turns.get("n-default", [])):
        rows["c-default"] = custom
    said = []
    for kind, words in (("n", "Without custom all-reduce"), ("c", "With it")):
        own = {name: row for name, row in rows.items() if name[0] == kind and name != "c-default"}
        differ = [
            f"{name} takes {row['ratio']:.3f} {row['interval']} times the default's verify time"
            for name, row in own.items()
            if not row["interval"][0] <= 1 <= row["interval"][1]
        ]
        if own:
            said.append(
                f"{words}: " + ("; ".join(differ) or f"none of {', '.join(own)} differs from the default")
            )
    if custom:
        said.append(
            f"custom all-reduce takes {custom['ratio']:.3f} {custom['interval']} times NCCL's verify time"
        )
    return {"rows": rows, "sentence": ". ".join(said) or "too few turns to say anything"}


CYCLES = r"""
import glob, json, statistics
out = {}
for path in glob.glob('/var/*/sglang/*/**/cycles.jsonl', recursive=True):
    rows = []
    for line in open(path):
        try: rows.append(json.loads(line))
        except ValueError: pass
    name = path.split('/sglang/')[1].split('/')[0]
    alone = [r for r in rows if r.get('batch') == 1 and r.get('verify_ms') and r['t'] >= SINCE]
    turns, last = [], 0.0
    for r in alone:
        if r['t'] - last > 0.3: turns.append([])
        turns[-1].append(r['verify_ms'])
        last = r['t']
    out.setdefault(name, {})['verify_by_turn'] = [statistics.median(turn) for turn in turns if len(turn) > 20]
    for batch in sorted({r.get('batch') for r in rows if r.get('batch')}):
        mine = [r for r in rows if r.get('batch') == batch and r.get('verify_ms')]
        if len(mine) > 20:
            out.setdefault(name, {})[str(batch)] = {
                'cycles': len(mine),
                **{k: [round(q, 4) for q in statistics.quantiles([r[k] for r in mine if r.get(k) is not None], n=4)]
                   for k in ('draft_ms', 'verify_ms', 'extend_ms', 'cycle_ms')
                   if sum(r.get(k) is not None for r in mine) > 20},
            }
print(json.dumps(out))
"""


def cycles(names: list[str], since: float) -> dict[str, Any]:
    """Quartiles of the parts of a cycle in milliseconds, by instance and batch size, and the median verify of each turn
    at batch 1 that began after ``since``."""
    said = ssh(f"python3 - <<'AERIE'\n{CYCLES.replace('SINCE', str(since))}\nAERIE", 60)
    try:
        return {name: found for name, found in json.loads(said.splitlines()[-1]).items() if name in names}
    except (ValueError, IndexError):
        return {"error": said[-300:]}


# 123 s until seven servers of two ranks are ready, beside each other, on the 30th of November 2026.
STEPS = (Step("two-nccl", 220, "NCCL's presets in profile mode, in turns", nccl, ("two-production",)),)
