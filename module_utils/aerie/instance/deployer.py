"""Carry out one step of a deployment's life. No Ansible here: settings in, a result out.

A module's files are compiled anew at each call on a host, so each step imports what it needs and no more.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

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
    token = "" if settings["state"] == "planned" else settings.get("lease") or ""
    return {"lease": token, **result, "elapsed_s": round(time.monotonic() - began, 2)}


def _plan(settings: Mapping[str, Any], check: bool) -> dict[str, Any]:
    result = _compare(settings, check)
    claim = settings.get("claim") or {}
    if check or not claim.get("controller") or not result["plan"]["changed"]:
        return result
    return _take(settings, claim, result["digest"])


def _compare(settings: Mapping[str, Any], check: bool) -> dict[str, Any]:
    # SGLang takes a second to answer /health. Everything else is done meanwhile, the imports too.
    store = InstanceStore(settings["state_dir"], settings["instance"])
    from . import reality

    if settings.get("digest"):
        from . import restore

        settings = restore.settings_of(store, store.load(), settings)
    look = reality.begin_look(store, settings["host"], settings["port"])

    from .step import Step
    from .step_planned import planned

    return planned(Step(settings, check=check), look)


def _take(settings: Mapping[str, Any], claim: Mapping[str, Any], digest: str) -> dict[str, Any]:
    """Take the lease, since there is something to do, and compare once more: nobody else changes it from here on.

    Raises lease-held, lease-busy, and whatever the second look refuses; the lease is given back then, and where another
    run has meanwhile done what was to be done.
    """
    from . import lease_host
    from .lease import Claim

    store = InstanceStore(settings["state_dir"], settings["instance"])
    lease, why = lease_host.take(store, Claim.from_mapping(claim))
    kept = False
    try:
        # "previous" means the deployment that the first look found.
        again = {**settings, "digest": digest} if settings.get("digest") else settings
        result = _compare(again, False)
        kept = bool(result["plan"]["changed"])
    finally:
        if not kept:
            lease_host.release(store, lease.token)
    return {**result, "lease": lease.token, "why": why} if kept else result


def _change(settings: Mapping[str, Any], check: bool) -> dict[str, Any]:
    if check:
        return _carry_out(settings, check)
    from . import lease_host

    store = InstanceStore(settings["state_dir"], settings["instance"])
    token = settings.get("lease") or ""
    with lease_host.at_work(store, token, "sglang_deployment", settings["state"]):
        result = _carry_out(settings, check)
    if settings.get("last"):  # a kill before this leaves the lease of a dead run, and nothing to do
        lease_host.release(store, token)
    return {**result, "released": bool(settings.get("last"))}


def _carry_out(settings: Mapping[str, Any], check: bool) -> dict[str, Any]:
    from . import step_switch
    from .needed import Plan
    from .step import Step

    step = Step(settings, check=check)
    if settings["state"] not in WITHOUT_SPEC:
        step.spec = step.make_spec()
    getattr(step_switch, settings["state"])(step)
    return step.result(Plan(step.digest))
