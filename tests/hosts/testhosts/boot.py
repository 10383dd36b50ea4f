"""Turning a process that is alone in its namespaces into a host: mounts, name, then systemd."""

from __future__ import annotations

import os
import shutil
import socket
import uuid
from pathlib import Path

from . import cgroups, syscalls
from .layout import Layout
from .record import Host
from .syscalls import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    MS_SHARED,
)

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
STRICT = MS_NOSUID | MS_NODEV | MS_NOEXEC


def overlay_options(layers: list[str], folder: str) -> str:
    """Options of the host's root: layers topmost first. Paths are relative, which keeps the string far below the
    kernel's limit of one page and free of a checkout path's colons and commas.

    redirect_dir=on: without it, renaming a folder that lies in a lower layer fails with EXDEV, as on no real disk.
    metacopy=off and index=off: a layer frozen as a snapshot must be complete and not tied to the layers below by file
    handles.
    volatile: no sync reaches the disk. A host does not outlive a crash of the machine, and its power-off would
    otherwise wait for everything that the whole machine has yet to write.
    """
    return (
        f"lowerdir={':'.join(layers)},upperdir={folder}/upper,workdir={folder}/work,"
        "redirect_dir=on,metacopy=off,index=off,volatile"
    )


def parse_bind(text: str) -> tuple[str, str, bool]:
    """``SRC:DST`` or ``SRC:DST:ro`` as (source, destination, read only). ValueError when it is neither."""
    parts = text.split(":")
    read_only = parts.pop() == "ro" if len(parts) == 3 and parts[2] in ("ro", "rw") else False
    if len(parts) != 2 or not parts[1].startswith("/") or not parts[0]:
        raise ValueError(f"{text!r} is not SRC:DST or SRC:DST:ro with an absolute DST")
    return parts[0], parts[1], read_only


def become_init(layout: Layout, host: Host, groups: list[Path]) -> None:
    """Called as pid 1 of a new pid namespace, in the host's network namespace. Does not return."""
    # Joined first: the control group that a process is in when it unshares becomes the root that the host sees.
    cgroups.join(groups)
    syscalls.unshare(
        syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWCGROUP
    )
    syscalls.mount("none", "/", flags=MS_REC | MS_PRIVATE)
    os.umask(0o022)
    os.chdir(layout.state)
    folder = f"hosts/{host.name}"
    root = f"{layout.state}/{folder}/merged"
    # The mark of the last boot's volatile mount; the kernel refuses the next one while it is there.
    shutil.rmtree(f"{folder}/work/work/incompat", ignore_errors=True)
    syscalls.mount("overlay", root, "overlay", options=overlay_options(host.layers, folder))
    _kernel_file_systems(root)
    _devices(root)
    _control_groups(root, host.cgroups)
    for text in host.binds:
        _bind(root, *parse_bind(text))
    _shield_machine(root)
    _own_boot_id(root)
    socket.sethostname(host.name)
    os.chdir(root)
    syscalls.pivot_root_here()
    # systemd propagates mounts into its services; LoadCredential= and others fail when the root is private.
    syscalls.mount("none", "/", flags=MS_REC | MS_SHARED)
    os.execve(
        "/usr/lib/systemd/systemd",
        ["systemd", "--log-target=console"],
        {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "container": "aerie-hosts"},
    )


def _kernel_file_systems(root: str) -> None:
    syscalls.mount("proc", f"{root}/proc", "proc", STRICT)
    syscalls.mount("sysfs", f"{root}/sys", "sysfs", STRICT | MS_RDONLY)
    syscalls.mount("tmpfs", f"{root}/dev", "tmpfs", MS_NOSUID, "mode=755,size=16m")
    syscalls.mount("tmpfs", f"{root}/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    syscalls.mount("tmpfs", f"{root}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")


def _devices(root: str) -> None:
    for name in DEVICES:
        Path(f"{root}/dev/{name}").touch()
        syscalls.mount(f"/dev/{name}", f"{root}/dev/{name}", flags=MS_BIND)
    for name in ("pts", "shm", "mqueue"):
        Path(f"{root}/dev/{name}").mkdir()
    syscalls.mount(
        "devpts", f"{root}/dev/pts", "devpts", MS_NOSUID, "newinstance,ptmxmode=0666,mode=620,gid=5"
    )
    syscalls.mount("tmpfs", f"{root}/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd"}
    links |= {name: f"/proc/self/fd/{number}" for number, name in enumerate(("stdin", "stdout", "stderr"))}
    for name, target in links.items():
        Path(f"{root}/dev/{name}").symlink_to(target)


def _control_groups(root: str, mode: str) -> None:
    top = f"{root}/sys/fs/cgroup"
    if mode == "unified":
        syscalls.mount("cgroup2", top, "cgroup2", STRICT)
        return
    syscalls.mount("tmpfs", top, "tmpfs", STRICT, "mode=755")
    for controller in (*cgroups.V1_CONTROLLERS, "systemd"):
        Path(f"{top}/{controller}").mkdir()
        options = "none,name=systemd" if controller == "systemd" else controller
        syscalls.mount("cgroup", f"{top}/{controller}", "cgroup", STRICT, options)
    Path(f"{top}/unified").mkdir()
    syscalls.mount("cgroup2", f"{top}/unified", "cgroup2", STRICT)


def _bind(root: str, source: str, destination: str, read_only: bool) -> None:
    target = Path(f"{root}{destination}")
    if Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    syscalls.mount(source, str(target), flags=MS_BIND | MS_REC)
    if read_only:
        syscalls.mount("none", str(target), flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def _shield_machine(root: str) -> None:
    # A sysctl written in a host would change the whole machine; only net.* belongs to the host's own namespace.
    tree = f"{root}/proc/sys"
    syscalls.mount(tree, tree, flags=MS_BIND)
    syscalls.mount(f"{tree}/net", f"{tree}/net", flags=MS_BIND)
    syscalls.mount("none", tree, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | STRICT)
    trigger = f"{root}/proc/sysrq-trigger"
    if Path(trigger).exists():
        syscalls.mount("/dev/null", trigger, flags=MS_BIND)


def _own_boot_id(root: str) -> None:
    # ansible.builtin.reboot and journalctl --list-boots tell boots apart by it; the kernel's is the machine's.
    file = Path(f"{root}/run/boot_id")
    file.write_text(f"{uuid.uuid4()}\n")
    syscalls.mount(str(file), f"{root}/proc/sys/kernel/random/boot_id", flags=MS_BIND)
