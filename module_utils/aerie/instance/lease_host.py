"""The lease in the host's file system: ``lease.json`` changed under a lock on ``lease.lock``. Rules: ``lease``."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from .. import processes
from ..errors import AerieError, ErrorKind
from ..files import read_json, write_json
from .lease import Claim, Clock, Lease, check, granted, renewed, why_free
from .state import InstanceStore

BUSY = ErrorKind(
    "lease-busy",
    "A step of another run is at work on the host at this moment, though its controller may be gone.",
)

FILE, LOCK = "lease.json", "lease.lock"
# The longest that a step of a dead run is waited for. The slowest is the copy of a package tree: 222 MiB.
BUSY_S = 120.0


def clock_now() -> Clock:
    """The host's boot and its age."""
    boot = (processes.PROC / "sys/kernel/random/boot_id").read_text().strip()
    return Clock(boot, time.clock_gettime(time.CLOCK_BOOTTIME))


def read(store: InstanceStore) -> Lease | None:
    """The lease as it is on the host."""
    return Lease.from_mapping(read_json(store.root / FILE))


def take(store: InstanceStore, claim: Claim, *, patience_s: float = BUSY_S) -> tuple[Lease, str]:
    """Take the lease and return it with the reason for which it was free. Raises lease-held, lease-busy.

    A module of a dead run that is still at work is waited for: it holds the lock.
    """
    clock = clock_now()
    granted(read(store), claim, clock)  # refuse at once what a lock need not be waited for
    store.create()
    with locked(store, patience_s):
        before, clock = read(store), clock_now()
        lease = granted(before, claim, clock)
        # Without it a plan cannot name the digest of a deployment that has keys.
        store.salt(create=True)
        _write(store, lease)
        return lease, why_free(before, claim, clock)


def release(store: InstanceStore, token: str) -> bool:
    """Give the lease back; False when it was not this run's any more, which is nobody's fault by then."""
    if not (store.root / FILE).exists():
        return False
    with locked(store):
        lease = read(store)
        if lease is None or lease.token != token:
            return False
        with suppress(OSError):  # a disk that turned read-only: it is told apart as a dead run's later on
            (store.root / FILE).unlink()
        return True


def renew(store: InstanceStore, token: str, phase: str = "") -> None:
    """Extend a lease that is half used up, or whose phase has changed. Raises lease-lost. For steps that only look."""
    if not token:
        return
    lease, clock = read(store), clock_now()
    check(lease, token, clock)
    if lease is None or (lease.left(clock) > lease.ttl_s / 2 and phase in ("", lease.phase)):
        return
    with locked(store):
        lease = read(store)
        check(lease, token, clock)
        if lease is not None:
            _write(store, replace(renewed(lease, clock_now()), phase=phase or lease.phase))


@contextmanager
def at_work(store: InstanceStore, token: str, module: str, phase: str) -> Iterator[None]:
    """Work under the lock with the lease checked, renewed, and naming this process. Raises lease-lost, -held, -busy.

    A disk that is full or read-only by now keeps the lease as it was: whoever has it may still stop a server, and a
    step that has to write says itself that it cannot. On a host that has no directory for the instance yet there is
    nothing to lock, and nobody holds anything.
    """
    if not store.root.is_dir():
        check(None, token, clock_now())
        yield
        return
    with locked(store):
        lease, clock = read(store), clock_now()
        check(lease, token, clock)
        if lease is None or not token:
            yield
            return
        me = processes.read_process(os.getpid())
        step = {"module": module, "pid": os.getpid(), "start_ticks": me.start_ticks if me else 0}
        lease = replace(renewed(lease, clock), phase=phase, step=step)
        with suppress(OSError):
            _write(store, lease)
        try:
            yield
        finally:
            _end_step(store, lease)


def _end_step(store: InstanceStore, lease: Lease) -> None:
    """The lock ends with the process in any case; the record of the step is only for people."""
    with suppress(OSError):
        _write(store, replace(renewed(lease, clock_now()), step={}))


@contextmanager
def locked(store: InstanceStore, patience_s: float = BUSY_S) -> Iterator[None]:
    """Hold the instance's lock; the kernel drops it with the process. Raises lease-busy after ``patience_s``."""
    path = store.root / LOCK
    with open_lock(path) as handle:
        until = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise _busy(store, patience_s) from None
                time.sleep(0.1)
        yield


@contextmanager
def open_lock(path: Path) -> Iterator[int]:
    """The lock file, open; never inherited by what a step starts, or the lock would outlive the step."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a lock needs nothing to be written
    try:
        yield handle
    finally:
        os.close(handle)


def _busy(store: InstanceStore, waited_s: float) -> AerieError:
    lease = read(store)
    pid = int(lease.step.get("pid") or 0) if lease else 0
    process = processes.read_process(pid) if pid else None
    return BUSY.error(
        f"a step of another run still works on instance {store.instance} after {waited_s:.0f} s",
        evidence=[
            *(lease.describe(clock_now()) if lease else []),
            *([process.describe()] if process else []),
        ],
        next="wait until it has ended and run again; if it hangs, end that process by its pid",
    )


def _write(store: InstanceStore, lease: Lease) -> None:
    write_json(store.root / FILE, lease.as_dict(), mode=0o600)
