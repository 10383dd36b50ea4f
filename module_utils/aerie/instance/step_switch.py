"""The steps that change a host: ``built``, ``stopped``, ``started``, ``rewritten``, ``accepted``, ``failed``."""

from __future__ import annotations

import grp
import time
from collections.abc import Mapping
from typing import Any

from .. import processes, systemd
from ..errors import ErrorKind
from ..files import read_text, write_atomic
from . import asked, deployment, host_default, leftovers, mode, state, witness
from .desired import secret_values
from .spec import CONFIG, resolved
from .step import Step
from .unit_lines import with_stop_timeout

RUNS = ErrorKind(
    "started-meanwhile",
    "The unit runs though this run had stopped it or had found it stopped: somebody started it.",
)

# An idle SGLang notices SIGTERM within five seconds; its schedulers then have some to release their memory.
IDLE_S = 15.0


def built(step: Step) -> None:
    """Make the deployment's directory; its own source and config then confirm that the draft gets its layers."""
    _build(step)
    if step.check:
        return
    from .step_draft import advice, judge

    report = judge(step.settings, step.served())
    step.found = {"advice": advice(report) if report else []}


def _build(step: Step) -> None:
    there = step.spec is not None and step.store.spec(step.digest) is not None
    if there and not witness.changed_sources(step.directory):
        return
    if step.act(f"build deployment {step.named}") and step.spec is not None:
        gid = grp.getgrnam(step.settings["group"]).gr_gid
        patches = mode.patches_for(step.settings.get("patches") or [], step.spec.release.release)
        deployment.build(step.store, step.spec, secret_values(step.settings), gid, patches, replace=there)


def stopped(step: Step) -> None:
    """Ask systemd to stop the unit; with ``disable`` it also stays down after a reboot, and what it left is removed."""
    unit = systemd.show(step.store.unit_name)
    wait_s = IDLE_S if unit.running and not step.check and _idle(step) else 0.0
    _stop(step, unit)
    step.found = {"ended": _ended(unit, wait_s)}
    if not step.settings["disable"]:
        return
    if step.found["ended"]:
        _sweep(step)
    _disable(step, unit)
    if step.record.phase not in (state.STOPPED, state.NONE):
        step.save(state.STOPPED)


def started(step: Step) -> None:
    """Make the deployment current, write its unit, ask systemd to start it."""
    step.require_built()
    before = systemd.show(step.store.unit_name)
    if before.running and not step.check:
        raise RUNS.error(
            f"{before.name} runs (pid {before.main_pid}), and this run was about to start it",
            next="run again: the plan then looks at what runs",
        )
    _traffic(step, "refused", step.settings.get("refuse") or {})
    if before.result == "timeout":  # systemd had to SIGKILL it; this word is gone once the unit starts again
        step.record.soak = max(step.record.soak, state.SOAK_AFTER_KILL)
    # A deployment that has not passed its gates must not come up by itself after a reboot.
    _disable(step, before)
    switch = step.store.current() != step.digest or not step.digest
    if switch and step.act(f"make deployment {step.named} current"):
        step.store.set_current(step.digest)
    _write_unit(step)
    step.save(state.SWITCHED)
    _sweep(step)
    if step.act(f"start {before.name}"):
        systemd.forget_failures(before.name)
        systemd.systemctl("start", "--no-block", before.name)


def rewritten(step: Step) -> None:
    """Write the unit of the server that runs, and the record, where only such lines differ as need no restart."""
    step.require_built()
    _write_unit(step)
    unit = systemd.show(step.store.unit_name)
    if unit.restarts and step.act(f"let systemd count the restarts of {unit.name} anew"):
        systemd.systemctl("reset-failed", unit.name)


def accepted(step: Step) -> None:
    """The last gate, connections admitted, the record, the start at boot; deployments that are kept no longer go.

    One call and not four: a server whose gates have passed waits for nothing but this.
    """
    step.require_built()
    if step.settings.get("check_sockets") and not step.check:
        from ..network import sockets

        sockets.check(sockets.look(step.store))
    _traffic(step, "admitted", step.settings.get("admit") or {})
    unit = systemd.show(step.store.unit_name)
    enable = unit.file_state != "enabled" and step.act(f"enable {unit.name} at boot")
    if enable:
        systemd.systemctl("enable", "--quiet", "--no-reload", unit.name)
    _record(step, unit)
    if enable:  # systemd reads all units anew, which takes a tenth of a second; a boot does that by itself
        systemd.systemctl("daemon-reload")


def _record(step: Step, unit: systemd.UnitState) -> None:
    """Note what has passed, and remove what is kept no longer."""
    new = (step.record.phase, step.record.accepted) != (state.ACCEPTED, step.digest)
    if not (new or step.settings["gates"]):
        return
    if not step.act(f"record deployment {step.named} as accepted") or step.spec is None:
        return
    process = processes.read_process(unit.main_pid)
    entry = {
        "digest": step.digest,
        "mode": step.spec.mode,
        "release": step.spec.release.release,
        "at": state.now(),
        "pid": unit.main_pid,
        "start_ticks": process.start_ticks if process else 0,
        "gates": step.settings["gates"],
        asked.KEY: dict(step.settings.get("gate") or {}),
        host_default.KEY: host_default.texts(step.settings.get("host_environment")),
    }
    if not new:
        entry |= {key: one for key, one in step.record.history[0].items() if key == "rolled_back_from"}
    elif step.settings.get("rollback"):
        entry["rolled_back_from"] = step.record.accepted
    rest = [one for one in step.record.history if one.get("digest") != step.digest]
    step.record.history = [entry, *rest][:10]
    step.record.accepted = step.digest
    if int((step.settings["gates"] or {}).get("soak_requests") or 0) >= step.record.soak:
        step.record.soak = 0
    witness.keep(step.store, step.digest, step.spec.as_dict())
    step.save(state.ACCEPTED)
    keep = [one["digest"] for one in step.record.history][: 1 + step.settings["keep"]]
    deployment.prune(step.store, [*keep, step.store.current()])


def _traffic(step: Step, state: str, ports: Mapping[str, Any]) -> None:
    """What ``sglang_traffic`` does, in this call; nothing without ports."""
    if not ports:
        return
    from ..network.traffic_control import TrafficControl

    of_instance = {name: step.settings[name] for name in ("instance", "state_dir")}
    control = TrafficControl({**of_instance, **ports, "state": state}, check=step.check)
    step.diff = control.run().get("diff") or {}
    step.actions += control.actions


def failed(step: Step) -> None:
    """Stop what did not pass its gates, keep the reason, and find out what can be gone back to."""
    from . import restore

    unit = systemd.show(step.store.unit_name)
    _stop(step, unit)
    _disable(step, unit)
    what = step.settings["failure"]
    step.record.failure = f"{what.get('step')}: {what.get('message')}"[:2000]
    digest = step.settings.get("failed_digest") or ""
    mode = (step.store.spec(digest) or step.settings).get("mode") or ""
    found = restore.candidates(step.store, step.record, restore.required_of(step.settings))
    back = restore.way_back(found, digest, mode)
    step.found = {
        "failure": dict(what),
        "back_to": back.digest if back else "",
        "candidates": [{**vars(one), "text": one.describe()} for one in found],
    }
    try:
        step.save(state.FAILED)
    except (
        OSError
    ) as error:  # a full disk must not keep the server from being stopped and the old one from coming back
        step.actions.append(f"the failure could not be recorded: {error}")


def _stop(step: Step, unit: systemd.UnitState) -> None:
    if unit.stopped or unit.load == "not-found":
        return
    _bound_stop(step, unit)
    if step.act(f"stop {unit.name}"):
        systemd.systemctl("stop", "--no-block", unit.name)


def _idle(step: Step) -> bool:
    """Whether the server has nothing to drain, so that nobody has to be shown a count."""
    from . import drain, restore
    from .keys import server_key

    digest = step.store.current()
    spec = step.store.spec(digest)
    if not spec:
        return False
    host, port = restore.address(spec)
    return drain.load_of(spec, host, port, server_key(step.store.deployment(digest) / CONFIG)).count == 0


def _ended(unit: systemd.UnitState, wait_s: float) -> bool:
    """Whether nothing of it is left, within some seconds: waiting here costs less than another call that finds it."""
    until = time.monotonic() + wait_s
    while True:
        gone = unit.stopped and not (unit.cgroup and processes.pids_in_cgroup(unit.cgroup))
        if gone or time.monotonic() >= until:
            return gone
        time.sleep(0.2)
        unit = systemd.show(unit.name)


def _sweep(step: Step) -> None:
    for path in leftovers.stale(step.settings["user"]):
        if step.act(f"remove {path}, left by a process that has ended"):
            path.unlink(missing_ok=True)


def _bound_stop(step: Step, unit: systemd.UnitState) -> None:
    """The time for this stop is what this run asks for, not what the server was started with."""
    seconds = int(step.settings.get("stop_timeout") or 0)
    old = read_text(step.store.unit_path) or ""
    new = with_stop_timeout(old, seconds) if seconds else old
    if new == old or not step.act(f"give {unit.name} {seconds} s to stop"):
        return
    try:
        write_atomic(step.store.unit_path, new)
        systemd.systemctl("daemon-reload")
    except OSError as error:  # a full disk must not keep it from being stopped
        step.actions.append(f"its time to stop stays what it was: {error}")


def _disable(step: Step, unit: systemd.UnitState) -> None:
    if unit.file_state == "enabled" and step.act(f"disable {unit.name} at boot"):
        systemd.systemctl("disable", "--quiet", unit.name)


def _write_unit(step: Step) -> None:
    if step.spec is None:
        step.act(f"write {step.store.unit_path}")
        return
    text = str(resolved(step.spec.as_dict(), str(step.directory))["unit"])
    path = step.store.unit_path
    old = read_text(path) or ""
    if old != text:
        step.diff = {"before": old, "after": text, "before_header": str(path), "after_header": str(path)}
        if step.act(f"write {path}"):
            write_atomic(path, text)
    # Only when the unit changed: a reload cuts running containers off their GPUs
    # (nvidia-container-toolkit #48, #251, #1227).
    unread = old == text and systemd.show(step.store.unit_name).needs_reload
    if unread:
        step.act(f"have systemd read {path}")
    if step.check:
        return
    if old != text or unread:
        systemd.systemctl("daemon-reload")
    # After systemd knows: a kill before this is seen by the next run, which does it again.
    deployment.renew_record(step.store, step.spec)
