"""Stage 4: faults with a card. What is wrong is named, and the way back works each time."""

from __future__ import annotations

import json
import re
import threading
import time
from typing import Any

from record import REHEARSAL, SIDE_CARD, on_host, ssh

from . import card, side, speed, wiring
from .core import Context, Outcome, Step, arguments, codes, first_failure, playbook, recaps, tail
from .production import inside

# Which instance loses which process: three of the wrong drafts in debug mode, or three of the chains in production.
WIRED = {"w-right": "launcher", "w-none": "scheduler", "w-random": "detokenizer"}
CHAINS = {"s1": "launcher", "s2": "scheduler", "s3": "detokenizer"}
# SGLang 0.5.17 on the H200 noticed a dead detokenizer after 66 s; a start takes another 50.
WATCH_S = 135


def looked(context: Context, name: str, timeout: int) -> dict[str, Any]:
    """gpu_memory_zero in the host, by the image's python, since the release may not be installed yet."""
    words = [*inside(timeout), "-e", f"ansible_python_interpreter={card.PYTHON}"]
    done = context.run(words, name)
    holders = re.findall(r"^\s*- GPU 0: pid .*$|GPU 0: pid .*$", done.output, re.MULTILINE)
    return {
        "status": done.status,
        "codes": codes(done.output),
        "holders": holders[:4],
        "tail": tail(done.output),
    }


def foreign(context: Context) -> Outcome:
    """On the empty card: one holder in the host, one outside it, then none."""
    up = card.hold_in_host()
    within = looked(context, "inside", 0)
    stopped = card.let_go()
    with card.Outsider() as outsider:
        beyond = looked(context, "outside", 0)
        said = outsider.said
    after = looked(context, "after", 10)
    whys = [
        None if up.endswith("up") else f"the foreign process did not start: {up[-200:]}",
        None if said == "holding" else "the outsider did not start",
        None
        if "nobody" in within["tail"] and "foreign.service" in within["tail"]
        else "user and unit were not named",
        None if beyond["status"] and beyond["codes"] else "an unseen holder was not refused",
        None if after["status"] == 0 else "not free afterwards",
    ]
    return Outcome(
        first_failure(whys), {"inside": within, "outside": beyond, "after": after, "stopped": stopped}
    )


def state(instance: str = "default") -> dict[str, Any]:
    """Where the instance stands: phase, accepted digest, unit, and whether it answers."""
    said = ssh(
        f"cat /var/lib/sglang/{instance}/state.json; echo; readlink /var/lib/sglang/{instance}/current; "
        f"systemctl is-active sglang-{instance}",
        20,
    )
    text, _, rest = said.rpartition("}")
    try:
        record = json.loads(text + "}")
    except ValueError:
        record = {}
    lines = rest.split()
    return {
        "phase": record.get("phase"),
        "accepted": record.get("accepted"),
        "current": lines[0].rsplit("/", 1)[-1] if lines else None,
        "unit": lines[-1] if lines else None,
    }


def came_back(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """The way back: the deployment that was accepted before serves again and is accepted."""
    if after["unit"] != "active":
        return f"the unit is {after['unit']}"
    if after["current"] != before["current"] or after["accepted"] != before["accepted"]:
        return f"current {after['current']}, accepted {after['accepted']}; before: {before}"
    return None


def failing_road(context: Context, name: str, expected: str, **variables: Any) -> Outcome:
    """A deployment that must fail, and what the host is after it."""
    before = state()
    done = context.run(playbook("production.yml", **variables), name)
    after = state()
    facts = {
        "before": before,
        "after": after,
        "seconds": done.seconds,
        "codes": codes(done.output),
        "tail": tail(done.output, 40),
    }
    return Outcome(
        first_failure(
            (
                "it was accepted" if done.status == 0 else None,
                "it had to be ended, its time was over" if done.status == 124 else None,
                None if re.search(expected, done.output) else f"the reason is not named: {expected}",
                came_back(before, after),
            )
        ),
        facts,
    )


def out_of_memory(context: Context) -> Outcome:
    """All of the card for the cache: nothing is left for the graphs. A rehearsal must not take all of the machine's
    memory, so it asks for none: SGLang's own refusal comes from the same place."""
    fraction = 0.00001 if REHEARSAL else 0.9995
    return failing_road(
        context,
        "road",
        r"(?i)out of memory|OutOfMemory|not enough memory",
        sglang_server_arguments=arguments(mem_fraction_static=fraction, max_total_tokens=None),
    )


def crash_in_capture(context: Context) -> Outcome:
    """The scheduler is killed while it captures CUDA graphs: a real crash in the middle of a start. In a rehearsal,
    which captures none, while it loads the weights."""
    moment = "Load weight begin" if REHEARSAL else "CUDA graph begin"
    watcher = threading.Thread(
        target=ssh,
        args=(
            f"journalctl -fu sglang-default -n0 -o cat | grep -m1 -q '{moment}' && "
            "for p in $(cat /sys/fs/cgroup/system.slice/sglang-default.service/cgroup.procs); do "
            "grep -q schedul /proc/$p/comm && kill -9 $p; done; echo killed",
            120,
        ),
    )
    watcher.start()
    time.sleep(0.5)
    outcome = failing_road(
        context,
        "road",
        r"(?i)ended|exited|died|restart|lost|failed",
        sglang_server_arguments=arguments(random_seed=7),
        # The wiring instances may stand beside it, on the same card.
        **({} if SIDE_CARD else side.neighbours(len(wiring.CASES))),
    )
    watcher.join(5)
    return outcome


def foreign_road(context: Context) -> Outcome:
    """Somebody takes memory on the card while it is ours: the road to debug is refused before anything is stopped."""
    before = state()
    with card.Outsider():
        done = context.run(playbook("debug.yml"), "road")
        during = state()
    facts = {"before": before, "during": during, "codes": codes(done.output), "tail": tail(done.output, 40)}
    why = "it was accepted" if done.status == 0 else None
    named = None if {"gpus-taken", "gpu-held"} & set(codes(done.output)) else "the holder was not named"
    return Outcome(first_failure((why, named, came_back(before, during))), facts)


def kills(
    context: Context, victims: dict[str, str], name: str, instances: list[side.Instance], book: str
) -> Outcome:
    """SIGKILL of launcher, scheduler and detokenizer, each of an instance of its own, all at the same time. ``book``
    brings back what does not come back by itself."""
    found: dict[str, Any] = {}

    def one(instance: str, victim: str) -> None:
        words = ["kill", f"sglang-{instance}.service", victim, str(WATCH_S)]
        found[victim] = on_host(words, WATCH_S + 15)

    threads = [threading.Thread(target=one, args=item) for item in victims.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    status = context.run(playbook("playbooks/status.yml"), "status")
    hosts = [f"gpu-{instance}" for instance in victims]
    listed = side.write(name, instances)
    verify = context.run(side.playbook("playbooks/verify.yml", listed, hosts), "verify")
    facts: dict[str, Any] = {
        "kills": found,
        "status": tail(status.output, 40),
        "verify": tail(verify.output, 60),
    }
    lost = [i for i, victim in victims.items() if found[victim].get("healthy_again_s") is None]
    if lost and context.left() > 60:
        again = context.run(side.playbook(book, listed, [f"gpu-{i}" for i in lost]), "again")
        facts["again"] = {"hosts": lost, "status": again.status, "tail": tail(again.output, 30)}
    errors = [f"{victim}: {one['error']}" for victim, one in found.items() if "error" in one]
    revived = [
        f"after the {victim} it did not come back by itself"
        for victim in ("launcher", "scheduler")
        if "error" not in found[victim] and found[victim].get("healthy_again_s") is None
    ]
    unnoticed = [
        "the dead detokenizer was not noticed"
        for one in [found["detokenizer"]]
        if one.get("healthy_again_s") is None and not recaps(verify.output).get(hosts[-1], {}).get("failed")
    ]
    if "again" in facts:
        facts["again"]["restarted"] = recaps(again.output)
        revived += [
            f"{host} was not brought back by its road"
            for host, one in facts["again"]["restarted"].items()
            if one.get("failed") or not one.get("changed")
        ]
    return Outcome(first_failure([*errors, *revived, *unnoticed]), facts)


def kill_wired(context: Context) -> Outcome:
    return kills(context, WIRED, "wiring", wiring.instances(), "debug.yml")


def kill_chains(context: Context) -> Outcome:
    return kills(context, CHAINS, "speed", speed.everybody(), "production.yml")


STEPS = (
    Step("foreign", 25, "holders inside and outside the host are found on the empty card", foreign),
    Step("kills", 165, "launcher, scheduler and detokenizer killed", kill_wired, ("wiring",)),
    Step("speed-kills", 165, "the same of three chains in production mode", kill_chains, ("speed-up",)),
    Step(
        "oom",
        110,
        "OOM at start: named, and the accepted deployment comes back",
        out_of_memory,
        ("production",),
    ),
    Step("crash", 110, "a crash during graph capture, and back", crash_in_capture, ("production",)),
    Step("foreign-road", 45, "somebody else holds memory during a transition", foreign_road, ("production",)),
)
