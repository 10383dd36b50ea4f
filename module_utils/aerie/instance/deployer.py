"""Carry out one step of a deployment's life. No Ansible here: settings in, a result out.

A module's files are compiled anew at each call on a host, so each step imports what it needs and no more.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from . import reality
from .state import InstanceStore

# Values of the module's option ``state`` that are about whatever runs, so that they need no spec.
WITHOUT_SPEC = ("stopped", "failed")


def run(settings: Mapping[str, Any], *, check: bool) -> dict[str, Any]:
    """Carry out ``settings["state"]`` (settings: the options of the module ``sglang_deployment``).

    Returns the module's result. With ``check`` nothing is written.
    """
    began = time.monotonic()
    carry_out = _plan if settings["state"] == "planned" else _change
    result = carry_out(settings, check)
    return {**result, "lease": settings.get("lease") or "", "elapsed_s": round(time.monotonic() - began, 2)}


def _plan(settings: Mapping[str, Any], check: bool) -> dict[str, Any]:
    # SGLang takes a second to answer /health. Everything else is done meanwhile, the imports too.
    store = InstanceStore(settings["state_dir"], settings["instance"])
    if settings.get("digest"):
        from . import restore

        settings = restore.settings_of(store, store.load(), settings)
    look = reality.begin_look(store, settings["host"], settings["port"])

    from .step import Step
    from .step_planned import planned

    return planned(Step(settings, check=check), look)


def _change(settings: Mapping[str, Any], check: bool) -> dict[str, Any]:
    if check:
        return _carry_out(settings, check)
    from . import lease_host

    store = InstanceStore(settings["state_dir"], settings["instance"])
    with lease_host.at_work(store, settings.get("lease") or "", "sglang_deployment", settings["state"]):
        return _carry_out(settings, check)


def _carry_out(settings: Mapping[str, Any], check: bool) -> dict[str, Any]:
    from . import step_switch
    from .plan import Plan
    from .step import Step

    step = Step(settings, check=check)
    if settings["state"] not in WITHOUT_SPEC:
        step.spec = step.make_spec()
    getattr(step_switch, settings["state"])(step)
    return step.result(Plan(step.digest))
