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


# Steps of a plan, with + at the same time; in the order of what is worth most, since the machine's time ends where it
# ends.
PLANS: dict[str, tuple[str, ...]] = {
    # Once the host is up and before SGLang is there.
    "empty": ("gpu-idle", "foreign", "probes"),
    "one": (
        *("production", "gpu-held", "again", "status", "hardening"),
        *("wiring", "kills+crash", "would-block", "wiring-stop", "foreign-road"),
        *("speed-up", "speed", "speed-stop", "time-to-ready"),
        *("benchmark", "round-1", "profile", "oom", "round-2", "tune", "round-3"),
    ),
    "two": tuple(step.name for step in two.STEPS),
    # Two cards, one for the instance and one for the side instances (inventory-apart), after "two" on the same machine.
    "apart": (
        *("production", "again", "status", "hardening", "foreign-road"),
        *(
            "round-1+wiring",
            "kills+crash",
            "would-block",
            "wiring-stop",
            "speed-up+oom",
            "speed",
            "speed-stop",
        ),
        *("time-to-ready", "benchmark", "profile", "round-2", "tune", "round-3"),
    ),
    "first-day": (
        *("gpu-idle", "check-virgin", "production", "gpu-held", "again", "check-running", "status"),
        *("baseline", "production-back", "stop", "gpu-zero"),
    ),
}
