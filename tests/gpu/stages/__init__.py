"""The stages of a run on a GPU machine; `run.py` picks from them."""

from __future__ import annotations

from . import faults, hardening, production, rounds, speed, tuning, two, wiring
from .core import Step

STEPS: tuple[Step, ...] = (
    *production.all_steps(),
    *rounds.STEPS,
    *wiring.STEPS,
    *faults.STEPS,
    *hardening.STEPS,
    wiring.AFTER,
    *speed.STEPS,
    speed.AFTER,
    speed.READY,
    *tuning.STEPS,
    *two.STEPS,
)


def _named(*names: str) -> tuple[Step, ...]:
    known = {step.name: step for step in STEPS}
    return tuple(known[name] for name in names)


# In the order of what is worth most, since the machine's time ends where it ends.
PLANS: dict[str, tuple[Step, ...]] = {
    # Once the host is up and before SGLang is there.
    "empty": _named("gpu-idle", "foreign", "probes"),
    "one": _named(
        *("production", "gpu-held", "again", "status", "hardening", "round-1"),
        *("wiring", "kills", "would-block", "wiring-stop"),
        *("speed-up", "speed", "speed-stop"),
        *("foreign-road", "oom", "time-to-ready", "round-2", "crash", "round-3"),
        *("benchmark", "profile", "tune"),
    ),
    "two": tuple(two.STEPS),
    "first-day": _named(
        *("gpu-idle", "check-virgin", "production", "gpu-held", "again", "check-running", "status"),
        *("baseline", "production-back", "stop", "gpu-zero"),
    ),
}
