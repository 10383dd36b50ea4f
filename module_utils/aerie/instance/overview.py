"""What a host runs, instance by instance: the data behind ``status`` and its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import health, processes
from ..files import read_json
from ..network import sockets
from ..release.rules import server_info_path
from ..strangers import holders, takeover
from . import allreduce, drift, host_default, lease_host, reality, restore, state, witness
from .keys import server_key
from .plan import duration
from .spec import CONFIG, resolved
from .state import InstanceStore

COLUMNS = ("instance", "mode", "release", "state", "up", "memory", "accept length", "health", "drift")


def overview(
    state_dir: str, *, verify: bool = False, host_environment: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """One record per instance of this host, from reality and record. Changes nothing. verify: see ``describe``.

    host_environment: the host's defaults as the inventory has them now; None where nobody said.
    """
    defaults = None if host_environment is None else host_default.texts(host_environment)
    stores = [InstanceStore(state_dir, name) for name in state.instances(state_dir)]
    return [
        {
            **describe(store, verify=verify),
            "restart_by_host": [] if defaults is None else host_default.of_instance(store, defaults),
        }
        for store in stores
    ]


def describe(store: InstanceStore, *, verify: bool = False) -> dict[str, Any]:
    """What one instance runs, and how that differs from its record.

    verify: hash every source file, have the server generate a token, and count a run that did not end as drift; an
    instance whose lease has not expired is not compared.
    """
    record = store.load()
    digest = store.current()
    spec = store.spec(digest) or {}
    host, port = restore.address(spec)
    seen = reality.look(store, host, port)
    accepted = next((one for one in record.history if one.get("digest") == digest), {})
    gates = accepted.get("gates") or {}
    patched = read_json(store.deployment(digest) / "patches.json") or {}
    found = sockets.compare(store, seen.members)
    held = lease_host.read(store)
    clock = lease_host.clock_now()
    # Whoever changes it now compares, gates and records it; a cron job must not cry meanwhile.
    compare = not (verify and held is not None and held.left(clock) > 0)
    reduces = allreduce.of_unit(spec, seen.unit.invocation if seen.unit.running else "")
    return {
        "instance": store.instance,
        "mode": spec.get("mode", ""),
        "release": (spec.get("release") or {}).get("release", ""),
        "digest": digest,
        "phase": record.phase,
        "failure": record.failure,
        "lease": held.describe(clock) if held else [],
        "unit": seen.unit.active,
        "pid": seen.unit.main_pid,
        "restarts": seen.unit.restarts,
        "up_s": round(seen.age_s, 1),
        # systemd has no figure where the memory controller is off
        "memory_bytes": seen.unit.memory_bytes or processes.memory_bytes(list(seen.members)),
        "url": f"http://{host}:{port}" if spec else "",
        "health": seen.health,
        "accept_length": gates.get("accept_length"),
        "accept_length_interval": gates.get("accept_length_interval"),
        "accept_length_since_start": _live(spec, store, seen, host, port),
        "listening": sockets.labelled(found),
        "all_reduce": reduces.as_result() if reduces else None,
        "tree": patched.get("tree", "pristine") if spec else "",
        "drift": [
            *find_drift(store, spec, seen, record, accepted, full=verify),
            *(_verified(record, seen, host, port) if verify else []),
            *sockets.complaints(found, accepted=record.phase == state.ACCEPTED),
        ]
        if compare
        else [],
        "before": takeover.said_notes(store),
        "soak": record.soak,
        "history": [
            {key: one.get(key) for key in ("digest", "mode", "release", "at")} for one in record.history
        ],
    }


def find_drift(
    store: InstanceStore,
    spec: Mapping[str, Any],
    seen: reality.Reality,
    record: state.InstanceState,
    accepted: Mapping[str, Any],
    *,
    full: bool = False,
) -> list[str]:
    """Everything that is not as recorded, a line each. full: hash every source file."""
    if not spec:
        return ["no complete deployment is current"] if record.phase == state.ACCEPTED else []
    digest = store.current()
    deployment = store.deployment(digest)
    release = spec.get("release") or {}
    free, files = witness.free_space(store.root)
    then = witness.load(store, digest)
    return [
        *drift.of_run(resolved(spec, str(deployment)), seen, record, accepted),
        *drift.of_port(restore.address(spec)[1], holders.lines(seen.listener, seen.members)),
        *witness.of_configs(spec),
        *drift.of_witness(then, witness.take(store, digest, spec) if then else {}),
        *drift.of_sources(witness.changed_sources(deployment, full=full)),
        *drift.of_release(
            release,
            read_json(Path(release.get("path") or "/nowhere") / "release.json"),
            Path(release.get("python") or "/nowhere").exists(),
        ),
        *drift.of_disk(str(store.root), free, files),
    ]


def _verified(record: state.InstanceState, seen: reality.Reality, host: str, port: int) -> list[str]:
    """What only ``verify`` asks: whether a run ended, and whether the server still generates."""
    lines = drift.of_unfinished(record)
    if not seen.owns_port:
        return lines
    # A server whose schedulers hang can answer /health for hours; this one makes it generate a token.
    answer = health.get(host, port, "/health_generate", timeout=60.0)
    if answer.ok or answer.status == 404:  # not every server has it
        return lines
    return [*lines, f"does not generate: /health_generate: {answer.describe()}"]


def _live(
    spec: Mapping[str, Any], store: InstanceStore, seen: reality.Reality, host: str, port: int
) -> float | None:
    release = (spec.get("release") or {}).get("release")
    if not release or seen.health != "ok":
        return None
    key = api_key(store, store.current())
    answer = health.get(host, port, server_info_path(str(release)), timeout=10.0, api_key=key)
    return health.live_accept_length(answer.json())


def api_key(store: InstanceStore, digest: str) -> str:
    """A key with which a deployment's server answers, '' when it asks for none."""
    return server_key(store.deployment(digest) / CONFIG) if digest else ""


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    length = "-"
    if one.get("accept_length") is not None:
        low, high = one.get("accept_length_interval") or (None, None)
        length = f"{one['accept_length']:.2f}" + (f" [{low:.2f}, {high:.2f}]" if low is not None else "")
    if one.get("accept_length_since_start") is not None:
        length += f" now {one['accept_length_since_start']:.2f}"
    running = one["unit"] in ("active", "reloading")
    memory = one.get("memory_bytes")
    return (
        one["instance"],
        one["mode"] or "-",
        one["release"] or "-",
        one["phase"] + ("" if running else f", {one['unit']}"),
        duration(one["up_s"]) if running else "-",
        f"{memory / (1 << 30):.2f} GiB" if memory else "-",
        length,
        one["health"],
        f"{len(one['drift'])}" if one["drift"] else "none",
    )


def table(instances: Sequence[Mapping[str, Any]]) -> str:
    """The instances as text for people, one line each, drift and failures below. Figures: see ``describe``."""
    if not instances:
        return "no instance on this host"
    rows = [COLUMNS, *(_row(one) for one in instances)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    for one in instances:
        lines += [f"{one['instance']}: drift: {line}" for line in one["drift"]]
        if one.get("lease"):
            lines.append(f"{one['instance']}: lease: {'; '.join(one['lease'])}")
        if one.get("failure"):
            lines.append(f"{one['instance']}: failed: {one['failure'].splitlines()[0]}")
        if one.get("soak"):
            lines.append(
                f"{one['instance']}: the next start is gated over {one['soak']} requests: SIGKILL ended the last"
            )
        lines += [f"{one['instance']}: {line}" for line in one.get("before") or []]
        if one.get("restart_by_host"):
            why = ", ".join(one["restart_by_host"])
            lines.append(f"{one['instance']}: restarts on its next run, by gpu_host_nccl_env: {why}")
        reduces = one.get("all_reduce") or {}
        if reduces.get("kind") not in (None, allreduce.NONE):
            lines.append(f"{one['instance']}: all-reduce: {reduces['said']}")
        if one.get("tree") not in (None, "", "pristine"):
            lines.append(f"{one['instance']}: source: {one['tree']}")
        if one["listening"]:
            lines.append(f"{one['instance']}: listens on {', '.join(one['listening'])}")
    return "\n".join(lines)
