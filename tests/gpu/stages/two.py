"""Issue 10's stages, on a host with two GPUs: `--plan two`. First of all, that multicast stays off.

The same road with `tp_size: 2`; what differs stands in `inventory-two`. No step here passes `--enable-nccl-nvls` or
`--enable-symm-mem`, and none starts a server other than through a unit with the three variables.
"""

from __future__ import annotations

import json
import re
from typing import Any

import timeline
from record import REHEARSAL, RUN, on_host, ssh

from . import card, production, rounds, side
from .core import (
    Context,
    Done,
    Outcome,
    Step,
    changed,
    codes,
    first_failure,
    group_vars,
    inventories,
    recaps,
    tail,
    unchanged,
)

INVENTORY_TWO = "tests/gpu/inventory-two"
REQUIRED = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
DROP_IN = "/etc/systemd/system/sglang-default.service.d/without.conf"


def playbook(book: str, *options: str, **variables: Any) -> list[str]:
    words = ["ansible-playbook", *inventories(INVENTORY_TWO), book, *options]
    return words + (["-e", json.dumps(variables, sort_keys=True)] if variables else [])


def beside(book: str, path: str, hosts: list[str]) -> list[str]:
    words = ["ansible-playbook", *inventories(INVENTORY_TWO, path), book]
    return [*words, "--limit", ",".join(hosts), "--forks", "16"]


def one_each() -> list[side.Instance]:
    """Two instances, each on a card of its own; nobody is anybody's neighbour."""
    arguments = {
        name: value
        for name, value in group_vars(INVENTORY_TWO)["sglang_server_arguments"].items()
        if name != "tp_size"
    }
    return [
        side.Instance(
            f"card{gpu}",
            220 + gpu,
            {
                "sglang_server_gpus": [str(gpu)],
                "sglang_server_arguments": arguments,
                "gpu_host_free_neighbours": [],
                "gpu_host_free_tolerance_mib": 0,
            },
        )
        for gpu in (0, 1)
    ]


def refused_without(context: Context) -> Outcome:
    """Before the first start: each of the three variables taken out of the unit by a drop-in; no start may get as far
    as SGLang. The road makes the unit; the drop-in is there before it."""
    found: dict[str, Any] = {}
    first = next(iter(REQUIRED))
    ssh(
        f"mkdir -p {DROP_IN.rsplit('/', 1)[0]} && printf '[Service]\\nUnsetEnvironment={first}\\n' > {DROP_IN} "
        "&& systemctl daemon-reload",
        20,
    )
    done = context.run(playbook("production.yml"), "road")
    found["road"] = {"status": done.status, "codes": codes(done.output), "tail": tail(done.output, 30)}
    for name in REQUIRED:
        said = ssh(
            f"printf '[Service]\\nUnsetEnvironment={name}\\nRestart=no\\n' > {DROP_IN} && systemctl daemon-reload && "
            "systemctl reset-failed sglang-default 2>/dev/null; "
            "test -f /etc/systemd/system/sglang-default.service || echo no-unit; "
            "systemctl start sglang-default; echo status $?; "
            "systemctl show -p ExecMainPID,ExecMainStatus,Result sglang-default; "
            "journalctl -u sglang-default -o cat --no-pager | tail -12; systemctl stop sglang-default",
            90,
        )
        found[name] = said[-1500:]
    journal = ssh(
        "journalctl -u sglang-default -o cat --no-pager | grep -c 'server_args=\\|sglang.launch_server'", 20
    )
    ssh(f"rm -f {DROP_IN}; systemctl daemon-reload; systemctl reset-failed sglang-default; echo done", 20)
    found["lines_of_sglang"] = journal
    return Outcome(judge_refusals(found), found)


def judge_refusals(found: dict[str, Any]) -> str | None:
    """Nothing may have started, for none of the variables, and not a line of SGLang may be in the journal."""
    whys = ["the road did not fail" if found["road"]["status"] == 0 else None]
    for name in REQUIRED:
        said = found[name]
        whys.append(f"{name}: there was no unit to start" if "no-unit" in said else None)
        whys.append(
            f"{name}: the start was not refused" if re.search(r"^status 0$", said, re.MULTILINE) else None
        )
        whys.append(f"{name}: not named in the journal" if name not in said else None)
    lines = found["lines_of_sglang"].split()
    whys.append("SGLang was loaded" if not lines or lines[-1] != "0" else None)
    return first_failure(whys)


def environment_of(unit: str) -> dict[str, dict[str, str | None]]:
    """The three variables in the environment of every process of a unit whose environment can be read.

    SGLang's own children write their title over it (seen: NUL bytes alone); what *they* start shows what they had.
    """
    said = ssh(
        f"for p in $(cat /sys/fs/cgroup/system.slice/{unit}/cgroup.procs); do "
        'grep -qz ^PATH= /proc/$p/environ || continue; echo "pid $p"; '
        "tr '\\0' '\\n' < /proc/$p/environ | grep -E '^(NCCL_NVLS_ENABLE|TORCH_SYMM_MEM_DISABLE_MULTICAST|"
        "NVSHMEM_DISABLE_NVLS)='; done",
        20,
    )
    found: dict[str, dict[str, str | None]] = {}
    pid = ""
    for line in said.splitlines():
        if line.startswith("pid "):
            pid = line[4:]
            found[pid] = dict.fromkeys(REQUIRED)
        elif pid and "=" in line:
            name, _, value = line.partition("=")
            found[pid][name] = value
    return found


def multicast_off(unit: str = "sglang-default.service") -> str | None:
    """Every process of the unit has the three variables, and the log shows no multicast."""
    processes = environment_of(unit)
    wrong = [pid for pid, values in processes.items() if values != REQUIRED]
    if not processes or wrong:
        return f"multicast is not off in {wrong or 'any process'}"
    said = ssh(
        f"journalctl -u {unit} -o cat --no-pager | grep -E 'multicast = True|NVLS multicast support is available'",
        20,
    )
    return f"multicast in the log: {said[:200]}" if said else None


def production_two(context: Context) -> Outcome:
    done = context.run(playbook("production.yml"), "road")
    why = changed(done)
    off = multicast_off()
    status = context.run(playbook("playbooks/status.yml"), "status")
    reduces = re.findall(r"all-reduce: .*", status.output)
    again = context.run(playbook("production.yml"), "again")
    facts = {
        "all_reduce": reduces,
        "nvlink": ssh(
            "PATH=$PATH:/usr/local/nvidia/bin nvidia-smi topo -m; nvidia-smi nvlink -s | head -4", 20
        )[-3000:],
        "refused": ssh(
            "journalctl -u sglang-default -o cat --no-pager | grep -iE 'not permitted|EPERM|pidfd' | head", 20
        ),
        "tail": tail(done.output, 40) if why else "",
    }
    return Outcome(
        first_failure(
            (
                why,
                off,
                unchanged(again),
                # A rehearsal has one rank, which reduces nothing.
                None if reduces or REHEARSAL else "status does not say which all-reduce runs",
            )
        ),
        facts,
    )


def held_two(context: Context) -> Outcome:
    """While it serves, both cards are held; a stranger on the second card alone is found."""
    done = context.run([*production.inside(0)], "served")
    both = {f"GPU {n}" for n in (0, 1) if f"GPU {n}: pid" in done.output}
    return Outcome(
        None if len(both) == 2 else f"holders named on {sorted(both)}", {"tail": tail(done.output, 30)}
    )


def second_card(context: Context) -> Outcome:
    """Both cards free but for a process on the second."""
    stop = context.run(playbook("playbooks/stop.yml"), "stop")
    free = context.run(production.inside(15), "free")
    up = card.hold_in_host("cuda:1", 60)
    held = context.run(production.inside(0), "held")
    gone = card.let_go()
    after = context.run(production.inside(15), "after")
    return Outcome(
        first_failure(
            (
                None if stop.status == 0 else "stop.yml failed",
                production.zero(free),
                None if up.endswith("up") else f"the foreign process did not start: {up[-200:]}",
                None
                if held.status and "GPU 1: pid" in held.output
                else "the holder on the second card was not found",
                production.zero(after),
            )
        ),
        {"held": tail(held.output, 25), "gone": gone},
    )


def round_two(context: Context) -> Outcome:
    """production -> debug -> production at TP 2: probes of rank 0 only, both cards proven free."""
    done = context.run(playbook("debug.yml"), "debug")
    tree_debug = rounds.judge_tree(rounds.tree(), True)
    debug = {
        "seconds": done.seconds,
        "said": rounds.said(done.output),
        "codes": codes(done.output),
        "gpu": rounds.moments(context, "debug"),
    }
    debug["events"] = rounds.events()
    off = multicast_off()
    back = context.run(playbook("production.yml"), "back")
    facts = {"debug": debug, "back": {"seconds": back.seconds, "gpu": rounds.moments(context, "back")}}
    pids = debug["events"].get("pids", [])
    return Outcome(
        first_failure(
            (
                changed(done),
                tree_debug,
                off,
                None if len(pids) == 1 else f"probes of {len(pids)} processes, 1 was expected",
                changed(back),
                rounds.judge_tree(rounds.tree(), False),
            )
        ),
        facts,
    )


def scheduler_killed(context: Context) -> Outcome:
    """SIGKILL of one of the two schedulers: what becomes of the other rank, of both cards, and of the launcher."""
    found = on_host(["kill", "sglang-default.service", "scheduler", "100"], 115)
    empty = timeline.emptied((RUN / "timeline.jsonl").read_text(), found.get("killed_at", 0.0))
    again = found.get("healthy_again_s")
    return Outcome(
        first_failure(
            (
                None if again else f"it did not come back: {found.get('error', found.get('seen'))}",
                None if empty and None not in empty else f"a card was never empty after the kill: {empty}",
            )
        ),
        {"kill": found, "empty_after_s": empty},
    )


def cards(context: Context) -> Outcome:
    """Two instances, one a card, deployed at the same time; then one is deployed anew while the other serves."""
    listed = one_each()
    context.run(playbook("playbooks/stop.yml"), "first")
    if why := side.seed(one.name for one in listed):
        return Outcome(why)
    path = side.write("cards", listed)
    hosts = [one.host for one in listed]
    both = context.run(beside("production.yml", path, hosts), "both")
    before = ssh("systemctl show -p MainPID --value sglang-card0.service", 10)
    alone = context.run([*beside("playbooks/baseline.yml", path, hosts[1:])], "second")
    after = ssh("systemctl show -p MainPID --value sglang-card0.service", 10)
    gates = re.findall(r"GPU \d free.*|\d GPUs? free.*", alone.output)
    stop = context.run(beside("playbooks/stop.yml", path, hosts), "stop")
    return Outcome(
        first_failure(
            (
                _each(both, hosts),
                _each(alone, hosts[1:]),
                None if before == after != "0" else f"the first instance's pid went from {before} to {after}",
                None if stop.status == 0 else "they were not stopped",
            )
        ),
        {"recaps": {**recaps(both.output), "second": recaps(alone.output)}, "gates": gates},
    )


def _each(done: Done, hosts: list[str]) -> str | None:
    found = recaps(done.output)
    bad = [host for host in hosts if found.get(host, {}).get("failed", 1) or not found[host].get("changed")]
    return f"not deployed: {', '.join(bad)}" if bad else None


STEPS = (
    Step("two-refused", 65, "no start without one of the three variables", refused_without),
    Step("two-production", 85, "production at TP 2, twice", production_two, ("two-refused",)),
    Step("two-held", 10, "both cards are held", held_two, ("two-production",)),
    Step("two-round", 150, "production -> debug -> production at TP 2", round_two, ("two-production",)),
    Step("two-kill", 125, "one scheduler of two killed", scheduler_killed, ("two-production",)),
    Step("two-second-card", 30, "both free but for the second card", second_card, ("two-production",)),
    Step("two-cards", 200, "two instances, one a card", cards, ("two-production",)),
)
