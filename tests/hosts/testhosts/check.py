"""What the machine must offer, and what to type when it does not."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from . import cgroups, syscalls
from .errors import HostsError
from .layout import Layout

# Command -> the Debian and Ubuntu package that brings it.
COMMANDS = {
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "nsenter": "util-linux",
    "unshare": "util-linux",
}
# Without it Ubuntu's apt does not trust Debian's archive.
KEYRING_PACKAGE = "debian-archive-keyring"
FREE_MEGABYTES = 1000


def packages() -> list[str]:
    return sorted({*COMMANDS.values(), KEYRING_PACKAGE})


def missing_packages() -> list[str]:
    missing = {package for command, package in COMMANDS.items() if shutil.which(command) is None}
    if not Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists():
        missing.add(KEYRING_PACKAGE)
    return sorted(missing)


def _in_child(action: Callable[[], None], stage: str) -> str | None:
    """Run ``action`` in a process of its own and return what went wrong, or None."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            action()
        except BaseException as problem:
            os.write(writer, f"{stage}: {problem}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, errors="replace") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said or None


def _try_namespaces() -> None:
    syscalls.unshare(
        syscalls.CLONE_NEWNS
        | syscalls.CLONE_NEWUTS
        | syscalls.CLONE_NEWIPC
        | syscalls.CLONE_NEWPID
        | syscalls.CLONE_NEWNET
        | syscalls.CLONE_NEWCGROUP
    )


def _try_overlay(folder: Path) -> None:
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    os.chdir(folder)
    for name in ("lower", "upper", "work", "merged"):
        Path(name).mkdir()
    options = "lowerdir=lower,upperdir=upper,workdir=work,redirect_dir=on,metacopy=off,index=off,volatile"
    syscalls.mount("overlay", "merged", "overlay", options=options)
    Path("merged/file").touch()


def check_quickly(layout: Layout) -> None:
    """The part that costs nothing; every command begins with it. Raises HostsError for the first lack."""
    if sys.platform != "linux":
        raise HostsError(
            "test hosts need Linux", evidence=[f"this is {sys.platform}"], next="use a Linux machine"
        )
    if os.geteuid() != 0:
        raise HostsError(
            "test hosts need root, for namespaces, mounts and a bridge",
            evidence=[f"this is user id {os.geteuid()}"],
            next="type the same again after: sudo -i",
        )
    missing = missing_packages()
    if missing:
        raise HostsError(
            f"missing packages: {' '.join(missing)}",
            next=f"apt-get update && apt-get install -y {' '.join(missing)}",
        )
    cgroups.hierarchies()
    layout.make()


def check(layout: Layout) -> None:
    """Raises HostsError for the first thing that is missing. Changes nothing that stays."""
    check_quickly(layout)
    problem = _in_child(_try_namespaces, "unshare")
    if problem:
        raise HostsError(
            "the kernel does not let this process make namespaces",
            evidence=[problem],
            next="use a virtual machine, or a container started with --privileged",
        )
    _check_disk(layout)


def _check_disk(layout: Layout) -> None:
    free = shutil.disk_usage(layout.state).free // 1_000_000
    if free < FREE_MEGABYTES:
        raise HostsError(
            f"only {free} MB free under {layout.state}",
            evidence=[f"an image and a few hosts need {FREE_MEGABYTES} MB"],
            next="free some space; `hosts clean --all` removes images and snapshots",
        )
    with tempfile.TemporaryDirectory(prefix=".overlay-", dir=layout.state) as folder:
        problem = _in_child(lambda: _try_overlay(Path(folder)), "overlay")
    if problem:
        raise HostsError(
            f"no overlay file system can have its upper folder under {layout.state}",
            evidence=[problem],
            next="modprobe overlay; if it is loaded, put the checkout on ext4, xfs or btrfs (not on an overlay)",
        )
