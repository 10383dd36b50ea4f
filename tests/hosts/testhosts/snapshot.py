"""Freezing a host's disk as a read-only layer from which others boot."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

from . import ssh, sweep
from .commands import run
from .errors import HostsError
from .files import read_json, write_json
from .layout import Layout, valid_name
from .lifecycle import checkout_lock, existing, name_lock, power_off
from .processes import Identity
from .record import Host, load_all

# What makes a machine itself. Each host that boots from the layer gets its own: machine-id by systemd, which fills an
# empty file; the host key and the others by `up`.
IDENTITY_FILES = (
    "etc/ssh/ssh_host_*",
    "root/.ssh/authorized_keys",
    "root/.ssh/known_hosts",
    "var/lib/systemd/random-seed",
    "var/lib/systemd/credential.secret",
    "var/log/journal/*",
    "var/log/wtmp",
    "var/log/btmp",
    "var/log/lastlog",
    "root/.bash_history",
    "root/.ansible",
)


def scrub(layer: Path) -> None:
    """Remove the frozen host's identity and history from the layer."""
    for pattern in IDENTITY_FILES:
        for path in layer.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    (layer / "etc/machine-id").write_text("")


def freeze(layout: Layout, name: str, snapshot: str, replace: bool = False) -> None:
    """Power the host off, turn its disk into ``snapshot`` and forget the host. Nothing is copied."""
    valid_name(snapshot, "snapshot")
    with name_lock(layout, name):
        host = existing(layout, name)
        with checkout_lock(layout):
            _refuse_or_remove(layout, snapshot, replace)
            # From here on the sweep of another command leaves the host alone, also while it is off.
            host.owner = Identity.own().as_json()
            host.save(layout)
        try:
            if host.state(layout) != "off":
                power_off(layout, host)
        finally:
            host.owner = None
            host.save(layout)
        with checkout_lock(layout):
            gone = _move(layout, host, snapshot)
        shutil.rmtree(gone, ignore_errors=True)


def _move(layout: Layout, host: Host, snapshot: str) -> Path:
    aside = layout.snapshots / f".freezing-{snapshot}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    write_json(aside / "owner.json", Identity.own().as_json())
    scrub(host.folder(layout) / "upper")
    # Without its disk the host is nothing; should this run be killed, the next sweep removes both.
    host.ready = False
    host.save(layout)
    (host.folder(layout) / "upper").rename(aside / "layer")
    # The host's disk was mounted volatile: nothing of it is sure to be on the machine's disk yet.
    run(["sync", "--file-system", str(aside / "layer")], seconds=300)
    layers = [f"snapshots/{snapshot}/layer", *host.layers]
    write_json(aside / "snapshot.json", {"suite": host.suite, "from": host.name, "layers": layers})
    (aside / "owner.json").unlink()
    aside.rename(layout.snapshots / snapshot)
    gone = sweep.remove_host(layout, host.name)
    sweep.remove_network_when_unused(layout)
    ssh.write_files(layout, load_all(layout))
    return gone


def users(layout: Layout, snapshot: str) -> list[str]:
    """Hosts and other snapshots that stand on the snapshot."""
    layer = f"snapshots/{snapshot}/layer"
    found = [f"host {host.name}" for host in load_all(layout) if layer in host.layers]
    found += [
        f"snapshot {name}" for name, record in all_snapshots(layout).items() if layer in record["layers"][1:]
    ]
    return found


def _refuse_or_remove(layout: Layout, snapshot: str, replace: bool) -> None:
    if not (layout.snapshots / snapshot).exists():
        return
    if not replace:
        raise HostsError(
            f"there is a snapshot {snapshot} already", next="add --replace, or take another name"
        )
    remove(layout, snapshot)


def remove(layout: Layout, snapshot: str) -> bool:
    """Delete a snapshot; False when there is none. Raises HostsError while something stands on it."""
    folder = layout.snapshots / valid_name(snapshot, "snapshot")
    standing = users(layout, snapshot)
    if standing:
        raise HostsError(
            f"snapshot {snapshot} is in use", evidence=standing, next="hosts down HOST, hosts forget SNAPSHOT"
        )
    if not folder.exists():
        return False
    gone = layout.snapshots / f".freezing-gone-{snapshot}"
    with contextlib.suppress(FileNotFoundError):
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
    return True


def all_snapshots(layout: Layout) -> dict[str, dict[str, Any]]:
    found = {}
    for folder in sorted(layout.snapshots.iterdir()):
        record = read_json(folder / "snapshot.json")
        if record is not None and not folder.name.startswith("."):
            found[folder.name] = record
    return found


def used_images(layout: Layout) -> set[str]:
    """Keys of the images under hosts and snapshots."""
    lists = [host.layers for host in load_all(layout)]
    lists += [record["layers"] for record in all_snapshots(layout).values()]
    return {layers[-1].split("/")[1] for layers in lists}
