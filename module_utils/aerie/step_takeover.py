"""The part of a plan that is about processes that are not ours: refused, or taken over where a person allowed it."""

from __future__ import annotations

from collections.abc import Sequence

from . import holders, stranger, takeover
from .errors import AerieError
from .plan import Plan
from .reality import Reality
from .step import Step
from .stranger import Stranger


def of_ports(step: Step, seen: Reality, ports: Sequence[int]) -> list[Stranger]:
    """Whoever holds a port without being of the unit, all of them allowed to be taken over. Raises port-taken."""
    _allowed(step)
    found = []
    for port in ports:
        mine = port == step.settings["port"]
        found += (
            holders.on_ports(seen.listener, seen.members)
            if mine
            else holders.port_holders(port, seen.members)
        )
    return holders.approve_ports(found, _allowed(step)) if found else []


def of_gpus(step: Step, seen: Reality) -> list[Stranger]:
    """The same for the instance's GPUs. Raises gpus-taken, and what keeps the GPUs from being looked at."""
    look = step.settings.get("gpu_look") or {}
    if not look or look.get("expected_count") == 0 or (step.spec is None and seen.unit.running):
        return []
    try:
        found = holders.on_gpus(look, seen.members)
    except AerieError:
        if step.spec is None:
            return []  # before the install and the host's own checks, which say more
        raise
    return holders.approve_gpus(found, _allowed(step))


def plan(step: Step, plan: Plan, seen: Reality, on_ports: Sequence[Stranger]) -> None:
    """Which strangers have to go before the new server starts: those on its ports, and those on its GPUs."""
    if on_ports:
        plan.restart = plan.gates = True
    taken = [*on_ports, *(of_gpus(step, seen) if plan.restart else [])]
    plan.takeover = holders.tokens_of(list({one.token: one for one in taken}.values()), _allowed(step))
    known = {one["token"] for one in plan.takeover}
    plan.takeover += [
        {"token": token, "text": f"ends the takeover of {token}, which a run before this one began"}
        for token in takeover.under_way(step.store)
        if token not in known
    ]
    plan.reasons[:0] = [one["text"] for one in plan.takeover]


def _allowed(step: Step) -> list[str]:
    """What a person allowed to be taken over, and what an earlier run began to."""
    given = [stranger.parse_token(one) for one in step.settings.get("takeover") or []]
    return [*(f"{pid}:{start}" for pid, start in given), *takeover.under_way(step.store)]
