"""One control group per host, on a machine with cgroup2 alone or with cgroup2 next to the old hierarchies."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from .errors import HostsError

V1_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids")
V2_CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids")


@dataclass(frozen=True)
class Hierarchies:
    """Mount points of the machine: cgroup2, and the old controllers by name (``systemd`` is the named one)."""

    unified: Path
    old: dict[str, Path] = field(default_factory=dict)

    def all(self) -> list[Path]:
        return [self.unified, *self.old.values()]


def parse_mounts(mountinfo: str) -> Hierarchies | None:
    """Read /proc/self/mountinfo; None when no cgroup2 is mounted."""
    unified: Path | None = None
    old: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4])
        kind, _source, options = after.split()[:3]
        if kind == "cgroup2" and unified is None:
            unified = point
        elif kind == "cgroup":
            for option in options.split(","):
                if option in V1_CONTROLLERS or option == "name=systemd":
                    old[option.removeprefix("name=")] = point
    return None if unified is None else Hierarchies(unified, old)


def hierarchies() -> Hierarchies:
    found = parse_mounts(Path("/proc/self/mountinfo").read_text())
    if found is None:
        raise HostsError(
            "no cgroup2 file system is mounted",
            evidence=["systemd in a host needs one; /proc/self/mountinfo lists none"],
            next="boot the machine without systemd.unified_cgroup_hierarchy=0",
        )
    return found


def modes(found: Hierarchies) -> list[str]:
    """What a host can be given. ``hybrid`` enforces memory and task limits on a machine whose controllers sit in
    the old hierarchies; ``unified`` looks like a current production host."""
    complete = all(name in found.old for name in (*V1_CONTROLLERS, "systemd"))
    return ["unified", "hybrid"] if complete else ["unified"]


def _inherit_cpuset(mount_point: Path, group: Path) -> None:
    # An old cpuset group starts empty, and no process may join it before it has processors and memory nodes.
    for step in (group.parent, group):
        for name in ("cpuset.cpus", "cpuset.mems"):
            (step / name).write_text((mount_point / name).read_text())


def _delegate(mount_point: Path, group: Path) -> None:
    # Without this a host on a cgroup2-only machine would have no controllers to limit with.
    for step in (mount_point, group.parent):
        for controller in V2_CONTROLLERS:
            with contextlib.suppress(OSError):
                (step / "cgroup.subtree_control").write_text(f"+{controller}")


def create(group: str, mode: str) -> list[Path]:
    """Make a fresh group in each hierarchy that the mode uses; returns the folders to join."""
    found = hierarchies()
    folders = []
    for mount_point in [found.unified] + (list(found.old.values()) if mode == "hybrid" else []):
        folder = mount_point / group
        folder.mkdir(parents=True, exist_ok=True)
        if mount_point == found.old.get("cpuset"):
            _inherit_cpuset(mount_point, folder)
        if mount_point == found.unified and not found.old:
            _delegate(mount_point, folder)
        folders.append(folder)
    return folders


def join(folders: list[Path]) -> None:
    """Move this process into the groups; "0" means the writer in any pid namespace."""
    for folder in folders:
        (folder / "cgroup.procs").write_text("0")


def _kill_members(folder: Path) -> None:
    killer = folder / "cgroup.kill"
    if killer.exists():
        killer.write_text("1")
        return
    for members in folder.rglob("cgroup.procs"):
        for pid in members.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def _remove_tree(folder: Path) -> bool:
    for inner, _folders, _files in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            Path(inner).rmdir()
    return not folder.exists()


def remove(group: str, seconds: float = 5.0) -> None:
    """Kill whatever is left in the group and remove it from every hierarchy. No-op when it is not there.

    Group membership is the proof that a process is ours.
    """
    for mount_point in hierarchies().all():
        folder = mount_point / group
        deadline = time.monotonic() + seconds
        while folder.exists():
            with contextlib.suppress(FileNotFoundError, OSError):
                _kill_members(folder)
            if _remove_tree(folder):
                break
            if time.monotonic() > deadline:
                raise HostsError(
                    f"the control group {folder} does not go away",
                    evidence=[f"its processes: {(folder / 'cgroup.procs').read_text().split()}"],
                    next="look at these processes; one in state D waits for a device",
                )
            time.sleep(0.02)


def children(group: str) -> set[str]:
    """Names of the groups below, over all hierarchies."""
    found: set[str] = set()
    for mount_point in hierarchies().all():
        folder = mount_point / group
        if folder.is_dir():
            found |= {entry.name for entry in folder.iterdir() if entry.is_dir()}
    return found
