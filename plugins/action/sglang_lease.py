"""Say who asks for a lease, and whether an owner on this machine is dead."""

from __future__ import annotations

import getpass
import multiprocessing
import os
import platform
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

PROC = Path("/proc")


def start_of(pid: int) -> str:
    """A process's start in clock ticks since boot, '' when there is none (or no /proc to ask)."""
    try:
        stat = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return ""
    state, *rest = stat.rpartition(b") ")[2].split()
    # a zombie is dead: its parent only has not looked yet
    return "" if state in (b"Z", b"X") else rest[18].decode()


def run_pid() -> int:
    """The process ``ansible-playbook``, of which a task runs in a child; that one's pid also when it has ended."""
    parent = multiprocessing.parent_process()
    return parent.pid if parent and parent.pid else os.getppid()


def identity(alias: str) -> dict[str, Any]:
    """This run, and what its pid means."""
    pid = run_pid()
    return {
        "host": platform.node(),
        "machine": first_line("/etc/machine-id"),
        "boot": first_line("/proc/sys/kernel/random/boot_id"),
        "namespace": namespace(),
        "pid": pid,
        "start": start_of(pid),
        "user": user_name(),
        "alias": alias,
    }


def first_line(path: str) -> str:
    """The first line of a small file, '' when it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def namespace() -> str:
    """The pid namespace: the same number is another process in another container."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def user_name() -> str:
    """Who runs this, for people."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"


def is_dead(owner: dict[str, Any], me: dict[str, Any]) -> bool:
    """Whether the owner of a lease is known to be dead: it ran on this machine and runs no more.

    Of an owner elsewhere nothing is known, nor of one in another pid namespace of this boot.
    """
    if not owner.get("machine") or any(owner.get(key) != me[key] for key in ("host", "machine")):
        return False
    if owner.get("boot") != me["boot"]:
        return bool(owner.get("boot")) and bool(me["boot"])  # this machine was rebooted since
    if owner.get("namespace") != me["namespace"] or not owner.get("start"):
        return False
    return start_of(int(owner.get("pid") or 0)) != owner["start"]


class ActionModule(ActionBase):
    """One call of the module; a second one when the first met the lease of a dead run of this controller.

    ``sglang_deployment`` (action) does the same for a plan that takes the lease.
    """

    _requires_connection = True
    MODULE = "sglang_lease"

    def claim(self, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """The part of the options that says who asks for the lease; None when nobody does."""
        return arguments if arguments.get("state", "read") == "held" else None

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        claim = self.claim(arguments)
        if claim is None:
            return self._execute_module(self.MODULE, module_args=arguments, task_vars=task_vars)
        me = claim["controller"] = identity(str((task_vars or {}).get("inventory_hostname", "")))
        if not me[
            "start"
        ]:  # ansible-playbook was killed: a lease would have an owner that nobody can tell is dead
            return {"failed": True, "msg": "the run that asked for the lease is gone"}
        result = self._execute_module(self.MODULE, module_args=arguments, task_vars=task_vars)
        owner = result.get("owner") or {}
        held = (result.get("error") or {}).get("code") == "lease-held"
        if not held or not is_dead(owner.get("controller") or {}, me):
            return result
        self._display.display(
            f"  {me['alias']}: the run that held the lease is dead "
            f"(pid {owner['controller'].get('pid')} on this machine, at: {owner.get('phase') or 'its beginning'}); "
            "taking it over",
            color="bright gray",
        )
        claim["dead"] = owner["token"]
        return self._execute_module(self.MODULE, module_args=arguments, task_vars=task_vars)
