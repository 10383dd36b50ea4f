"""up, down, cut, heal and exec."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from . import cgroups, image, network, ssh, sweep
from .boot import parse_bind
from .commands import run
from .errors import HostsError
from .files import locked, read_json
from .layout import Layout, valid_name
from .processes import Identity
from .record import Host, load, load_all

CLEAN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
POWER_OFF_SECONDS = 60


@dataclass(frozen=True)
class Wanted:
    """What `up` was asked for. ``seconds`` bounds the wait for ssh."""

    suite: str | None = None
    snapshot: str | None = None
    binds: Sequence[str] = ()
    cgroups: str = "unified"
    seconds: float = 60


def checkout_lock(layout: Layout) -> AbstractContextManager[None]:
    return locked(layout.locks / "checkout")


def name_lock(layout: Layout, name: str) -> AbstractContextManager[None]:
    """Held by whatever changes one host, so that two commands for the same host take turns."""
    return locked(layout.locks / f"host-{name}")


def existing(layout: Layout, name: str) -> Host:
    host = load(layout, valid_name(name))
    if host is None:
        raise HostsError(f"there is no host {name}", next=f"hosts list, or hosts up {name}")
    return host


def running(layout: Layout, name: str) -> Host:
    host = existing(layout, name)
    state = host.state(layout)
    if state != "running":
        raise HostsError(f"host {name} is {state}", next=f"hosts up {name}")
    return host


def resolve_binds(binds: Sequence[str]) -> list[str]:
    """Bind options with absolute sources that exist. Raises HostsError."""
    resolved = []
    for text in binds:
        try:
            source, destination, read_only = parse_bind(text)
        except ValueError as problem:
            raise HostsError(str(problem), next="--bind /folder/here:/folder/in/host:ro") from None
        if not Path(source).exists():
            raise HostsError(f"--bind: {source} does not exist", next="create it, or leave the option out")
        resolved.append(f"{Path(source).resolve()}:{destination}:{'ro' if read_only else 'rw'}")
    return resolved


def layers_for(layout: Layout, wanted: Wanted) -> tuple[str, list[str]]:
    """Suite and read-only layers, topmost first, for a new host; builds the image when there is none."""
    if wanted.snapshot is None:
        suite = wanted.suite or "bookworm"
        return suite, [f"images/{image.ensure(layout, suite)}/root"]
    record = read_json(layout.snapshots / valid_name(wanted.snapshot, "snapshot") / "snapshot.json")
    if record is None:
        raise HostsError(f"there is no snapshot {wanted.snapshot}", next="hosts snapshots")
    if wanted.suite not in (None, record["suite"]):
        raise HostsError(
            f"snapshot {wanted.snapshot} is {record['suite']}, not {wanted.suite}", next="leave --suite out"
        )
    return record["suite"], record["layers"]


def up(layout: Layout, name: str, wanted: Wanted) -> Host:
    """Boot the host and return when ssh answers. A host that runs stays as it is; one that is off boots from its own
    disk, with what it was created with."""
    valid_name(name)
    binds = resolve_binds(wanted.binds)
    if wanted.cgroups not in cgroups.modes(cgroups.hierarchies()):
        raise HostsError("this machine has no complete set of old control groups", next="leave --cgroups out")
    with name_lock(layout, name):
        host = load(layout, name)
        if host is not None and host.state(layout) == "running":
            return host
        if host is None:
            suite, layers = layers_for(layout, wanted)
        try:
            with checkout_lock(layout):
                host = _claim(layout, host) if host else _create(layout, name, suite, layers, binds, wanted)
            _prepare_disk(layout, host)
            _start(layout, host, wanted.seconds)
            with checkout_lock(layout):
                host.ready, host.owner = True, None
                host.save(layout)
                ssh.write_files(layout, load_all(layout))
            return host
        except BaseException:
            discard(layout, name)
            raise


def _create(
    layout: Layout, name: str, suite: str, layers: list[str], binds: list[str], wanted: Wanted
) -> Host:
    subnet = network.ensure_bridge(layout)
    octet = network.take_octet(layout, [host.octet for host in load_all(layout)])
    host = Host(
        name=name,
        octet=octet,
        ip=str(subnet[octet]),
        gateway=str(subnet[1]),
        suite=suite,
        layers=layers,
        snapshot=wanted.snapshot,
        binds=binds,
        cgroups=wanted.cgroups,
        owner=Identity.own().as_json(),
    )
    host.folder(layout).mkdir()
    host.save(layout)
    return host


def _claim(layout: Layout, host: Host) -> Host:
    subnet = network.ensure_bridge(layout)
    host.ip, host.gateway = str(subnet[host.octet]), str(subnet[1])
    host.ready, host.owner = False, Identity.own().as_json()
    host.save(layout)
    host.off_marker(layout).unlink(missing_ok=True)
    return host


def _prepare_disk(layout: Layout, host: Host) -> None:
    """Write what tells this host from others into the top layer of its disk."""
    folder = host.folder(layout)
    upper = folder / "upper"
    for path, mode in (
        (upper, 0o755),
        (folder / "work", 0o755),
        (folder / "merged", 0o755),
        (upper / "root", 0o700),
        (upper / "root/.ssh", 0o700),
        (upper / "etc", 0o755),
        (upper / "etc/ssh", 0o755),
    ):
        path.mkdir(exist_ok=True)
        path.chmod(mode)
    keys = upper / "root/.ssh/authorized_keys"
    keys.write_text(ssh.ensure_key(layout))
    keys.chmod(0o600)
    (upper / "etc/hostname").write_text(f"{host.name}\n")
    (upper / "etc/hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{host.ip} {host.name}\n")
    host.host_key = ssh.ensure_host_key(upper / "etc/ssh", host.name)
    host.save(layout)


def _start(layout: Layout, host: Host, seconds: float) -> None:
    entry = Path(__file__).resolve().parent.parent / "hosts"
    console = host.folder(layout) / "console.log"
    supervisor = None
    try:
        with console.open("ab") as log, signals_held():
            supervisor = subprocess.Popen(
                [sys.executable, str(entry), "_supervise", host.name, str(host.octet)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        _wait_for_ssh(host, supervisor, console, seconds)
    except BaseException:
        if supervisor is not None:
            supervisor.kill()
        raise


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Let an interruption wait: one in the middle of Popen would leave a process that nobody knows. The child
    inherits this and has to undo it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait_for_ssh(host: Host, supervisor: subprocess.Popen[bytes], console: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not answers(host.ip):
        ended = supervisor.poll() is not None
        if ended or time.monotonic() > deadline:
            what = "ended while booting" if ended else f"did not answer on port 22 within {seconds:.0f} s"
            raise HostsError(
                f"host {host.name} {what}",
                evidence=["its console:", *console.read_text(errors="replace").splitlines()[-20:]],
                next="hosts check, then try again",
            )
        time.sleep(0.05)


def answers(ip: str) -> bool:
    """True when an ssh server greets."""
    try:
        with socket.create_connection((ip, 22), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def power_off(layout: Layout, host: Host) -> None:
    """Have systemd shut the host down and wait for it. The caller holds the host's lock. Raises HostsError."""
    init, supervisor = host.init(layout), host.supervisor(layout)
    if (
        init is None or supervisor is None or not init.send(signal.SIGRTMIN + 4)
    ):  # systemd: start poweroff.target
        raise HostsError(f"host {host.name} does not run", next=f"hosts up {host.name}")
    if not supervisor.wait(POWER_OFF_SECONDS) or not host.off_marker(layout).exists():
        console = (host.folder(layout) / "console.log").read_text(errors="replace")
        raise HostsError(
            f"host {host.name} did not power off within {POWER_OFF_SECONDS} s",
            evidence=["its console:", *console.splitlines()[-10:]],
            next=f"hosts exec {host.name} systemctl list-jobs",
        )


def discard(layout: Layout, name: str) -> None:
    """Stop the host at once and delete it."""
    with checkout_lock(layout):
        gone = sweep.remove_host(layout, name)
        sweep.remove_network_when_unused(layout)
        ssh.write_files(layout, load_all(layout))
    shutil.rmtree(gone, ignore_errors=True)


def down(layout: Layout, name: str, orderly: bool = False) -> bool:
    """Delete the host; False when there was none. Like pulling the plug, unless ``orderly``."""
    valid_name(name)
    with name_lock(layout, name):
        host = load(layout, name)
        if host is None:
            return False
        if orderly and host.state(layout) == "running":
            power_off(layout, host)
        discard(layout, name)
        return True


def set_cable(layout: Layout, name: str, *, plugged: bool) -> None:
    """Unplug the host's cable or plug it in again; the host keeps running. After plugging in, returns once packets
    get through (5 s at most)."""
    host = running(layout, name)
    run(["ip", "link", "set", "dev", layout.cable(host.octet), "up" if plugged else "down"])
    if plugged:
        # What the machine learnt while the cable was out ("nobody has this address") would hold for seconds.
        run(["ip", "neighbour", "flush", "dev", layout.bridge, "to", host.ip])
        deadline = time.monotonic() + 5
        while not reachable(host.ip) and time.monotonic() < deadline:
            time.sleep(0.05)


def reachable(ip: str) -> bool:
    """True when something at the address replies, if only to refuse."""
    try:
        with socket.create_connection((ip, 22), timeout=0.5):
            return True
    except OSError as problem:
        return problem.errno == errno.ECONNREFUSED


def execute(layout: Layout, name: str, command: Sequence[str]) -> NoReturn:
    """Become ``command`` inside the host, without ssh; its exit code is ours."""
    host = running(layout, name)
    init = host.init(layout)
    if init is None or not init.alive():
        raise HostsError(f"host {name} is between two boots", next="try again in a second")
    environment = {
        "PATH": CLEAN_PATH,
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "TERM": os.environ.get("TERM", "dumb"),
    }
    enter = ["nsenter", "--target", str(init.pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
    path = shutil.which("nsenter") or "/usr/bin/nsenter"
    os.execve(path, [*enter, "--", *command], environment)
