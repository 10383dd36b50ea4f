"""NCCL's presets at TP 2, in profile mode, side by side on both cards and measured in turns: what the verify takes."""

from __future__ import annotations

import json
import os
import re
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
    entries = (
        load.interleaved(ports, prompts, (1, 8), passes=5, tokens=128, until=context.deadline - 25)
        if ports
        else []
    )
    (RUN / "nccl.json").write_text(json.dumps(entries))
    status = context.run(playbook("playbooks/status.yml"), "status")
    facts = {
        "rates": {str(b): {name: load.rates(entries, name, b) for name in ports} for b in (1, 8)},
        "against_default": {
            name: load.compare(entries, name, "n-default", 1) for name in ports if name != "n-default"
        },
        "cycles": cycles(list(ports)),
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


CYCLES = r"""
import glob, json, statistics
out = {}
for path in glob.glob('/var/*/sglang/*/**/cycles.jsonl', recursive=True):
    rows = []
    for line in open(path):
        try: rows.append(json.loads(line))
        except ValueError: pass
    name = path.split('/sglang/')[1].split('/')[0]
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


def cycles(names: list[str]) -> dict[str, Any]:
    """Quartiles of the parts of a cycle in milliseconds, by instance and batch size."""
    said = ssh(f"python3 - <<'AERIE'\n{CYCLES}\nAERIE", 60)
    try:
        return {name: found for name, found in json.loads(said.splitlines()[-1]).items() if name in names}
    except (ValueError, IndexError):
        return {"error": said[-300:]}


STEPS = (Step("two-nccl", 140, "NCCL's presets in profile mode, in turns", nccl, ("two-production",)),)
