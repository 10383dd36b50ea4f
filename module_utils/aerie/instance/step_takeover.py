"""The part of a plan that is about processes that are not ours: refused, or taken over where a person allowed it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import AerieError
from ..processes import listeners
from .needed import Plan
from .reality import Reality
from .step import Step

if TYPE_CHECKING:
    from ..strangers.stranger import Stranger

# A plan with no stranger in the way is asked for far more often than one with: what it needs is imported then.


def of_ports(step: Step, seen: Reality, ports: Sequence[int]) -> list[Stranger]:
    """Whoever holds a port without being of the unit, all of them allowed to be taken over. Raises port-taken."""
    allowed = _allowed(step)
    foreign = []
    for port in ports:
        if port == step.settings["port"]:
            held = list(seen.listener)
        else:  # in the usual case only the unit's own processes are looked at
            held = [] if not port or listeners(port, pids=list(seen.members)) else listeners(port)
        foreign += [one for one in held if not set(one.pids) & set(seen.members)]
    if not foreign:
        return []
    from ..strangers import holders

    return holders.approve_ports(holders.on_ports(foreign, seen.members), allowed)


def of_gpus(step: Step, seen: Reality) -> list[Stranger]:
    """The same for the instance's GPUs. Raises gpus-taken, and what keeps the GPUs from being looked at."""
    look = step.settings.get("gpu_look") or {}
    if not look or look.get("expected_count") == 0 or (step.spec is None and seen.unit.running):
        return []
    from ..strangers import holders

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
    if taken:
        from ..strangers import holders

        plan.takeover = holders.tokens_of(list({one.token: one for one in taken}.values()), _allowed(step))
    known = {one["token"] for one in plan.takeover}
    plan.takeover += [
        {"token": token, "text": f"ends the takeover of {token}, which a run before this one began"}
        for token in _under_way(step)
        if token not in known
    ]
    plan.reasons[:0] = [one["text"] for one in plan.takeover]


def _allowed(step: Step) -> list[str]:
    """What a person allowed to be taken over, and what an earlier run began to. Raises takeover-token."""
    given = step.settings.get("takeover") or []
    if given:
        from ..strangers.stranger import parse_token

        given = [":".join(str(part) for part in parse_token(one)) for one in given]
    return [*given, *_under_way(step)]


def _under_way(step: Step) -> list[str]:
    if not (step.store.root / "before.json").exists():
        return []
    from ..strangers.takeover import under_way

    return under_way(step.store)
