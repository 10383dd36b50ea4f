"""Stage 1: a bare host becomes a production server; a second run changes nothing."""

from __future__ import annotations

import os
import re
import sys

from record import REHEARSAL

from .core import Done, Step, changed, command_step, module, passed, playbook, unchanged


def zero(done: Done) -> str | None:
    return None if done.status == 0 and re.search(r'"?zero"?: true', done.output) else "the GPU was not empty"


def held(done: Done) -> str | None:
    return (
        None if "holders" in done.output and done.status != 0 else "no holder was named, though a server runs"
    )


def outside(timeout: int) -> list[str]:
    """gpu_memory_zero on the machine itself, before anything is installed in the host: NVML's bindings are in the
    image."""
    words = [
        "ansible",
        "-m",
        "gpu_memory_zero",
        "-a",
        f"timeout={timeout}",
        "-i",
        "localhost,",
        "-c",
        "local",
    ]
    return [*words, "-e", f"ansible_python_interpreter={sys.executable}", "all"]


def inside(timeout: int) -> list[str]:
    return module("gpu_memory_zero", {"timeout": timeout})


# The probe modules without SGLang: what they do to CUDA graphs, and what they cost.
PROBES = command_step(
    "probes",
    30,
    "the probes alone, with CUDA graphs",
    [
        os.environ.get("AERIE_GPU_TORCH", sys.executable),
        "tests/gpu/probes.py",
        *(["--cpu"] if REHEARSAL else []),
    ],
    passed,
)

STEPS = (
    command_step("gpu-idle", 10, "GPU memory before anything, read outside the host", outside(0), zero),
    command_step(
        "check-virgin",
        40,
        "production.yml --check --diff on the bare host",
        playbook("production.yml", "--check", "--diff"),
        passed,
    ),
    command_step(
        "production", 170, "production.yml: install, deploy, gates", playbook("production.yml"), changed
    ),
    command_step(
        "gpu-held", 10, "GPU memory while it serves: the holder is named", inside(0), held, ("production",)
    ),
    command_step(
        "again",
        15,
        "production.yml again: nothing changes",
        playbook("production.yml"),
        unchanged,
        ("production",),
    ),
    command_step("status", 12, "status.yml", playbook("playbooks/status.yml"), passed, ("production",)),
)

# The rest of the first day's road; not part of a whole run, since debug and back show more.
MORE = (
    command_step(
        "check-running",
        30,
        "production.yml --check --diff while it serves",
        playbook("production.yml", "--check", "--diff"),
        unchanged,
        ("production",),
    ),
    command_step(
        "baseline",
        110,
        "baseline.yml: the same without speculation",
        playbook("playbooks/baseline.yml"),
        changed,
        ("production",),
    ),
    command_step(
        "production-back", 110, "production.yml back from the baseline", playbook("production.yml"), changed
    ),
    command_step("stop", 30, "stop.yml", playbook("playbooks/stop.yml"), changed, ("production",)),
    command_step("gpu-zero", 15, "GPU memory after the stop", inside(30), zero, ("stop",)),
)


def all_steps() -> tuple[Step, ...]:
    return (PROBES, *STEPS, *MORE)
