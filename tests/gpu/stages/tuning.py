"""Stage 5, by the project's own playbooks: benchmark.yml, profile.yml and tune.yml on the card."""

from __future__ import annotations

from .core import Step, changed, command_step, playbook

STEPS: tuple[Step, ...] = (
    command_step(
        "profile", 100, "profile.yml: where a cycle goes", playbook("profile.yml"), changed, ("production",)
    ),
    command_step(
        "tune", 240, "tune.yml: predict, then confirm", playbook("tune.yml"), changed, ("production",)
    ),
)
