"""Carry out one step of a deployment's life. No Ansible here: settings in, a result out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from .plan import Plan
from .step import Step
from .step_planned import planned
from .step_switch import accepted, built, failed, started, stopped

# By the module's option ``state``. These two are about whatever runs, so they need no spec.
WITHOUT_SPEC: dict[str, Callable[[Step], None]] = {"stopped": stopped, "failed": failed}
CHANGING: dict[str, Callable[[Step], None]] = {"built": built, "started": started, "accepted": accepted}


def run(settings: Mapping[str, Any], *, check: bool) -> dict[str, Any]:
    """Carry out ``settings["state"]`` (settings: the options of the module ``sglang_deployment``).

    Returns the module's result. With ``check`` nothing is written.
    """
    began = time.monotonic()
    return {**_run(Step(settings, check=check)), "elapsed_s": round(time.monotonic() - began, 2)}


def _run(step: Step) -> dict[str, Any]:
    name = step.settings["state"]
    if name in WITHOUT_SPEC:
        WITHOUT_SPEC[name](step)
        return step.result(Plan(""))
    if name == "planned":
        return planned(step)
    step.spec = step.make_spec()
    CHANGING[name](step)
    return step.result(Plan(step.digest))
