"""The stages of a run on a GPU machine; `run.py` picks from them."""

from __future__ import annotations

from . import faults, hardening, nccl, production, rounds, side, speed, tuning, two, wiring
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
    *speed.READY,
    *tuning.STEPS,
    *two.STEPS,
    *nccl.STEPS,
    side.CLEAR,
)


# Groups of steps: chains at the same time joined by +, the steps of a chain by /. In the order of what is worth most,
# since the machine's time ends where it ends.
PLANS: dict[str, tuple[str, ...]] = {
    # Once the host is up and before SGLang is there.
    "empty": ("gpu-idle", "foreign", "probes"),
    "one": (
        *("production", "gpu-held", "again", "status", "hardening"),
        *("wiring", "kills+crash", "wiring-stop", "speed-up", "speed", "speed-stop"),
        *(
            "time-to-ready",
            "round-1",
            "tune",
            "foreign-road",
            "oom",
            "profile",
            "round-2",
            "benchmark",
            "round-3",
        ),
    ),
    "two": (
        *("two-refused", "two-production", "two-held", "two-kill", "two-round", "two-nccl"),
        *("two-second-card", "two-cards"),
    ),
    # After "two" on the same machine: one card for the instance, the other for the side instances (inventory-apart).
    "apart": (
        *("clear", "production", "again", "hardening", "foreign-road"),
        "round-1/crash/oom/round-2+wiring/kills/would-block/wiring-stop/speed-up/speed",
        "round-3/time-to-ready/profile/benchmark+speed-stop/tune",
    ),
    "first-day": (
        *("gpu-idle", "check-virgin", "production", "gpu-held", "again", "check-running", "status"),
        *("baseline", "production-back", "stop", "gpu-zero"),
    ),
}
