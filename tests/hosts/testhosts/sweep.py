"""Removing what a killed run left. Called, under the checkout's lock, at the start of every command."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import time
from pathlib import Path

from . import cgroups, network, ssh
from .files import read_json
from .layout import Layout
from .processes import Identity
from .record import Host, load, load_all

STALE_SECONDS = 300
_serial = itertools.count()


def keep(*, ready: bool, owner_alive: bool, supervisor_alive: bool, off: bool) -> bool:
    """Whether a host's record stands.

    A living command that works on the host decides for itself. Otherwise a host that never answered is left over from
    an `up` that was killed, and one that answered is fine while it runs or when it has powered itself off.
    """
    if owner_alive:
        return True
    return ready and (supervisor_alive or off)


def orphans(
    cables: dict[int, str], groups: set[str], octets: set[int], names: set[str]
) -> tuple[list[str], list[str]]:
    """Cables and control groups that belong to no record, as (cables, groups)."""
    loose_cables = [cable for octet, cable in sorted(cables.items()) if octet not in octets]
    return loose_cables, sorted(groups - names)


def _end_processes(folder: Path) -> None:
    # Normally the kernel kills pid 1 of a host with its supervisor; its end is what frees the mounts.
    for name in ("supervisor.json", "init.json"):
        process = Identity.parse(read_json(folder / name))
        if process is not None:
            process.send(signal.SIGKILL)
            process.wait(10)


def remove_host(layout: Layout, name: str) -> Path:
    """Stop the host at once and forget it. Returns its folder under a new name, to be deleted by the caller (outside
    of the lock: a disk can be large). Works on any half-made host, and on none. The caller holds the lock."""
    host = load(layout, name)
    # Renamed first: a supervisor that has yet to write itself down fails to, and ends; one that has is read below.
    folder = layout.hosts / f".gone-{name}-{os.getpid()}-{next(_serial)}"
    with contextlib.suppress(FileNotFoundError):
        (layout.hosts / name).rename(folder)
    _end_processes(folder)
    cgroups.remove(f"{layout.cgroup}/{name}")
    if host is not None:
        network.delete_link(layout.cable(host.octet))
    return folder


def remove_network_when_unused(layout: Layout) -> None:
    """The bridge goes with the last host. The caller holds the lock."""
    if not load_all(layout):
        network.delete_link(layout.bridge)
    if not cgroups.children(layout.cgroup):
        cgroups.remove(layout.cgroup)


def _stands(layout: Layout, host: Host) -> bool:
    supervisor = host.supervisor(layout)
    return keep(
        ready=host.ready,
        owner_alive=host.owner_alive(),
        supervisor_alive=supervisor is not None and supervisor.alive(),
        off=host.off_marker(layout).exists(),
    )


def _half_built(layout: Layout) -> tuple[list[Path], set[str]]:
    """Image and snapshot folders whose builder has gone, and the control groups of builds that still run."""
    dead, running = [], set()
    for parent, prefix in ((layout.images, ".building-"), (layout.snapshots, ".freezing-")):
        for folder in parent.glob(f"{prefix}*"):
            owner = Identity.parse(read_json(folder / "owner.json"))
            if owner is not None and owner.alive():
                running.add(f"_image-{folder.name.removeprefix(prefix)}")
            else:
                dead.append(folder)
    return dead, running


def sweep(layout: Layout) -> list[str]:
    """Remove everything that no living command and no standing host needs; returns lines that say what."""
    said: list[str] = []
    for entry in sorted(layout.hosts.iterdir()):
        if entry.name.startswith("."):
            _end_processes(entry)
            shutil.rmtree(entry, ignore_errors=True)
            continue
        host = load(layout, entry.name)
        if host is None or not _stands(layout, host):
            shutil.rmtree(remove_host(layout, entry.name), ignore_errors=True)
            said.append(f"removed host {entry.name}, left by a run that was killed")
    hosts = load_all(layout)
    dead, running = _half_built(layout)
    loose_cables, loose_groups = orphans(
        network.cables(layout),
        cgroups.children(layout.cgroup),
        {host.octet for host in hosts},
        {host.name for host in hosts} | running,
    )
    for cable in loose_cables:
        network.delete_link(cable)
        said.append(f"removed cable {cable}, which belongs to no host")
    for group in loose_groups:
        cgroups.remove(f"{layout.cgroup}/{group}")
        said.append(f"ended what was left in control group {group}")
    for folder in dead:
        shutil.rmtree(folder, ignore_errors=True)
        said.append(f"removed half-built {folder.name.partition('-')[2]}")
    for entry in layout.state.glob(".*"):
        # Trial overlays and files being written, which live for less than a second.
        if time.time() - entry.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    remove_network_when_unused(layout)
    if said:
        ssh.write_files(layout, hosts)
    return said
