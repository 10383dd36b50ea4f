"""The few system calls that Python 3.11 does not offer. All raise OSError."""

from __future__ import annotations

import ctypes
import os
import platform
import signal

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED = 32, 4096, 16384, 1 << 18, 1 << 20
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x20000, 0x2000000, 0x4000000
CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 0x8000000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG = 1
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2) itself: mount(8) of util-linux 2.39 passes each option through fsconfig, which cuts at 256 bytes."""
    result = _libc.mount(
        source.encode(),
        target.encode(),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _checked(result, f"mount {kind or 'bind'} on {target}")


def detach(target: str) -> None:
    _checked(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), "unshare")


def enter(namespace: int, kind: int) -> None:
    """setns(2): move this thread into the namespace that a file descriptor names."""
    _checked(_libc.setns(namespace, kind), "setns")


def pivot_root_here() -> None:
    """Make the working directory the root and drop the old root (pivot_root(2), the example in its manual page)."""
    number = PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(f"pivot_root: no number known for {platform.machine()}")
    _checked(_libc.syscall(ctypes.c_long(number), b".", b"."), "pivot_root")
    detach(".")
    os.chdir("/")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send ``number`` to this process when its parent ends, however that ends."""
    _checked(_libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0), "prctl")
