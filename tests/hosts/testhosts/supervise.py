"""The one process that stays for each host: it holds the network namespace, boots the host, and boots it again.

machine: supervisor -> keeper (one per boot) -> pid 1 of the host. Each is killed by the kernel when its parent ends, so
that killing the supervisor takes the host, its mounts and its network with it.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from ipaddress import IPv4Address
from pathlib import Path

from . import cgroups, network, syscalls
from .boot import become_init
from .errors import HostsError
from .files import write_json
from .layout import Layout
from .processes import Identity
from .record import Host, load

REBOOT, POWER_OFF, FAILED = 10, 11, 12


def ending(status: int) -> int:
    """What a pid 1 meant by ending so: reboot(2) in a pid namespace kills it, by SIGHUP to restart and by SIGINT to
    power off or halt."""
    if os.WIFSIGNALED(status):
        meanings = {int(signal.SIGHUP): REBOOT, int(signal.SIGINT): POWER_OFF}
        return meanings.get(os.WTERMSIG(status), FAILED)
    return FAILED


def supervise(layout: Layout, name: str, octet: int) -> int:
    """Runs as long as the host. Returns 0 when the host powered itself off."""
    # `up` holds signals back while it starts us; pid 1 of the host must not inherit that.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    host = load(layout, name)
    # Another octet is another host of the same name, made after ours was swept away.
    if host is None or host.octet != octet:
        print(f"hosts: no record of {name}; its `up` has gone")
        return 1
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Fails when a sweep has removed the folder meanwhile, which is what should happen then.
    write_json(host.folder(layout) / "supervisor.json", Identity.own().as_json())
    namespace = network.new_namespace()
    cable = layout.cable(host.octet)
    network.plug(layout.bridge, cable, IPv4Address(host.ip), IPv4Address(host.gateway), namespace)
    end = REBOOT
    while end == REBOOT:
        end = _boot_once(layout, host, namespace)
    network.delete_link(cable)
    cgroups.remove(f"{layout.cgroup}/{name}")
    if end == POWER_OFF:
        host.off_marker(layout).touch()
    return 0 if end == POWER_OFF else 1


def _boot_once(layout: Layout, host: Host, namespace: int) -> int:
    # A fresh group for each boot: a group in which the last systemd enabled controllers takes no processes.
    group = f"{layout.cgroup}/{host.name}"
    cgroups.remove(group)
    folders = cgroups.create(group, host.cgroups)
    sys.stdout.flush()
    keeper = os.fork()
    if keeper == 0:
        _keep(layout, host, namespace, folders)
    _, status = os.waitpid(keeper, 0)
    end = os.WEXITSTATUS(status) if os.WIFEXITED(status) else FAILED
    print(
        f"hosts: {host.name} ended: { {REBOOT: 'reboot', POWER_OFF: 'power-off'}.get(end, 'failed') }",
        flush=True,
    )
    return end


def _keep(layout: Layout, host: Host, namespace: int, groups: list[Path]) -> None:
    """A process can make only one pid namespace for its children, hence one keeper per boot."""
    code = FAILED
    try:
        syscalls.die_with_parent()
        syscalls.enter(namespace, syscalls.CLONE_NEWNET)
        syscalls.unshare(syscalls.CLONE_NEWPID)
        child = os.fork()
        if child == 0:
            _init(layout, host, groups)
        write_json(host.folder(layout) / "init.json", Identity.of(child).as_json())
        _, status = os.waitpid(child, 0)
        code = ending(status)
        if code == FAILED:
            print(f"hosts: pid 1 of {host.name} ended with wait status {status:#x}", flush=True)
    except (OSError, HostsError):
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _init(layout: Layout, host: Host, groups: list[Path]) -> None:
    try:
        syscalls.die_with_parent()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        become_init(layout, host, groups)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(70)
