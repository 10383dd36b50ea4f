"""Stage 5, by the project's own playbooks: benchmark.yml, profile.yml and tune.yml on the card."""

from __future__ import annotations

from record import RUN

from .core import Step, changed, command_step, passed, playbook

LOAD = {
    "sglang_tune_prompts_file": "/srv/models/prompts.json",
    "sglang_tune_prompts": 10,
    "sglang_tune_max_new_tokens": 128,
    "sglang_tune_batch_sizes": [1, 8],
    "sglang_tune_nccl_presets": [],
    "sglang_tune_custom_all_reduce": "skip",
    "sglang_tune_reports_dir": str(RUN / "reports"),
}

STEPS: tuple[Step, ...] = (
    command_step(
        "profile",
        100,
        "profile.yml: where a cycle goes",
        playbook("playbooks/profile.yml"),
        changed,
        ("production",),
    ),
    command_step(
        "benchmark",
        200,
        "benchmark.yml: speculation against none",
        playbook("playbooks/benchmark.yml", **LOAD),
        passed,
        ("production",),
    ),
    command_step(
        "tune",
        330,
        "tune.yml: predict, then confirm",
        playbook("playbooks/tune.yml", **LOAD),
        passed,
        ("production",),
    ),
)
