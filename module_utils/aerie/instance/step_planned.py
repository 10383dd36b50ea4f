"""The step ``planned``: compare what is asked with what runs, refuse what cannot work, change nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..health import url_host
from ..network import nft
from ..network.ports import Ports, check_clashes
from ..network.traffic import Closed
from . import asked, deployment, drift, host_default, preflight, reality, state, step_takeover, witness
from .needed import Plan
from .plan import make_plan, measure_again, summary
from .startup import check_unit
from .step import Step
from .step_draft import advice, judge

# What a deployment's tree takes as long as the release is not there to be measured: 0.5.23 with its byte-code took
# 222 MiB (du, November 2026).
TREE_BYTES = 300 << 20
# What debug mode leaves for production (module sglang_accept_agreement).
DEBUG_RECORD = "debug-record.json"


def planned(step: Step, look: reality.Look) -> dict[str, Any]:
    """look: begun before, so that the server answers /health while the rest is looked at."""
    host, port = step.settings["host"], step.settings["port"]
    step.check_models()
    # A recorded deployment was judged when it was built, and its directory holds the draft as it is served.
    report = None if step.settings.get("recorded") else judge(step.settings)
    if report is not None and report.case.recommended:
        step.settings = {**step.settings, "draft_layer_ids": report.case.recommended}
    step.spec = step.make_spec()
    check_unit(look.seen.unit)
    taken = step_takeover.of_ports(step, look.seen, [port])
    for path, variable in step.models().values():
        files = [Path(path) / "config.json", *preflight.weight_files(Path(path))]
        preflight.check_readable(files, step.settings["user"], variable)
    ports = _check_ports(step)
    if ports is not None:
        taken += step_takeover.of_ports(step, look.seen, [ports.rendezvous])
    found = _found(step)
    seen = look.finish()
    plan = _plan(step, seen, found)
    _plan_traffic(step, plan, ports)
    step_takeover.plan(step, plan, seen, taken)
    also = host_default.also_affected(step.store, host_default.texts(step.settings.get("host_environment")))
    return {
        **step.result(plan),
        "summary": [*summary(plan, seen), *also],
        "draft": report.as_result() if report else {},
        "draft_layer_ids": step.settings["draft_layer_ids"],
        "advice": advice(report) if report else [],
        "accepted": _acceptance(step),
        "url": f"http://{url_host(host)}:{port}",
        "gated": _gated(step) if plan.changed else {},
        **_others(step),
        "debug_record": (step.store.root / DEBUG_RECORD).is_file(),
        "traffic_control": bool(step.settings["traffic_control"]),
        "mode": step.settings["mode"],
        "release": str((step.settings["release"] or {}).get("release") or ""),
        "ports": {"serving": port, "rendezvous": ports.rendezvous if ports else 0},
        "running": {
            "unit": seen.unit.active,
            "pid": seen.unit.main_pid,
            "age_s": round(seen.age_s, 1),
            "digest": seen.running,
            "health": seen.health,
            "ended": seen.unit.stopped and not seen.members,
        },
    }


def _acceptance(step: Step) -> dict[str, Any]:
    """What the gates measured when this very deployment was accepted; empty when it never was."""
    return next((one for one in step.record.history if one.get("digest") == step.digest), {})


def _gated(step: Step) -> dict[str, Any]:
    """What the gates have to know of the server that is planned."""
    from . import gated

    if step.spec is None:
        return gated.of_settings(step.settings)
    return gated.of_spec(step.spec.as_dict(), _acceptance(step))


def _others(step: Step) -> dict[str, Any]:
    """For a rollback: what else could be gone back to."""
    if not step.settings.get("recorded"):
        return {}
    from . import restore

    found = restore.candidates(step.store, step.record, restore.required_of(step.settings))
    return {"candidates": [{**vars(one), "text": one.describe()} for one in found]}


def _check_ports(step: Step) -> Ports | None:
    """The ports of the spec, this instance's alone; None as long as there is no spec."""
    if step.settings["traffic_control"]:
        nft.require()
    if step.spec is None:
        return None
    ports = Ports.of(step.spec.as_dict())
    check_clashes(ports, state.ports_of_others(step.store))
    return ports


def _plan_witness(plan: Plan, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Models and driver against the time when the gates passed: they measured another draft, or with another driver.

    A server that runs has the old weights in its memory, so new ones need a restart; a driver cannot be exchanged under
    a server that runs.
    """
    models, driver = drift.of_models(then, now), drift.of_driver(then, now)
    plan.reasons += [*models, *driver]
    plan.restart = plan.restart or bool(models)
    plan.gates = plan.gates or bool(models or driver)


def _plan_traffic(step: Step, plan: Plan, ports: Ports | None) -> None:
    """Whether a server that is otherwise as asked has lost its chain, or still has one that refuses clients."""
    if ports is None or plan.restart or plan.gates or not step.settings["traffic_control"]:
        return
    closed = nft.read_table().closed(step.store.instance)
    if closed != Closed.of([ports.rendezvous]):
        plan.traffic = True
        shown = ["a changed chain"] if closed is None else closed.lines(step.store.instance)
        plan.reasons.append(f"nftables is not as accepted, it has: {'; '.join(shown) or 'no chain'}")


@dataclass(frozen=True)
class _Found:
    """The deployment that is asked for, as it is on the host.

    built: it is there. then, now: its files and models when its gates passed, and now; empty where that is not known.
    edited: what was changed in it since.
    """

    built: bool
    then: Mapping[str, Any]
    now: Mapping[str, Any]
    edited: Sequence[str]


def _found(step: Step) -> _Found:
    """Read while the server is still to answer: hashes of its files take a tenth of a second."""
    if step.spec is None or step.store.spec(step.digest) is None:
        return _Found(False, {}, {}, [])
    then = witness.load(step.store, step.digest)
    now = witness.take(step.store, step.digest, step.spec.as_dict()) if then else {}
    return _Found(True, then, now, [*witness.changed_sources(step.directory), *drift.of_own(then, now)])


def _plan(step: Step, seen: reality.Reality, found: _Found) -> Plan:
    if step.spec is None:
        deployment.check_space(step.store.root, TREE_BYTES)
        why = "first deployment of this release; its digest is known after install"
        return Plan("", build=True, restart=True, gates=True, reasons=[why])
    if not found.built or found.edited:
        deployment.check_room(step.store.root, Path(step.spec.release.package_dir))
    plan = make_plan(
        step.digest,
        step.spec.as_dict(),
        step.store.spec(seen.running or step.store.current()),
        step.record,
        seen,
        built=found.built,
        edited=found.edited,
        deployment=str(step.directory),
        start_timeout=step.settings["start_timeout"],
    )
    if not step.digest:
        plan.reasons.append("its digest is known after build")
    _plan_witness(plan, found.then, found.now)
    _plan_again(step, plan, seen)
    return plan


def _plan_again(step: Step, plan: Plan, seen: reality.Reality) -> None:
    """Whether the gates are asked more today than when this server passed them, or another process passed them."""
    gate = step.settings.get("gate") or {}
    if plan.gates or plan.restart or not gate or step.settings.get("recorded"):
        return
    then = _acceptance(step)
    more = asked.more(then, gate, speculative=bool(step.settings["speculative"]))
    measure_again(plan, drift.of_restart(seen, then), more, seen)
