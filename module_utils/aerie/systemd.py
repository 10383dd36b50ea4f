"""Reading and steering one systemd unit by ``systemctl`` and ``journalctl``."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

from .errors import ErrorKind

SYSTEMCTL_FAILED = ErrorKind(
    "systemctl-failed", "systemctl refused a step; its own words are in the evidence."
)
NO_SYSTEMD = ErrorKind("no-systemd", "Aerie runs servers as systemd units, and this host has no systemctl.")

_PROPERTIES = (
    "LoadState", "ActiveState", "SubState", "Result", "MainPID", "NRestarts", "UnitFileState", "ControlGroup",
    "InvocationID", "DropInPaths", "NeedDaemonReload", "ExecMainCode", "ExecMainStatus",
    "ActiveEnterTimestampMonotonic", "MemoryCurrent", "FragmentPath",
)  # fmt: skip


@dataclass(frozen=True)
class UnitState:
    """The properties of a unit that decisions are made on. Times in microseconds of the monotonic clock."""

    name: str
    load: str
    active: str
    sub: str
    result: str
    main_pid: int
    restarts: int
    file_state: str
    cgroup: str
    invocation: str
    drop_ins: tuple[str, ...]
    needs_reload: bool
    exit_code: str
    exit_status: str
    memory_bytes: int | None
    fragment: str

    @property
    def running(self) -> bool:
        """Its main process is there."""
        return self.active in ("active", "reloading") and self.main_pid > 0

    @property
    def stopped(self) -> bool:
        """Nothing of it is running or about to."""
        return self.active in ("inactive", "failed")

    @classmethod
    def parse(cls, name: str, text: str) -> UnitState:
        """Read the output of ``systemctl show``."""
        values = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)

        def number(key: str) -> int:
            return int(values[key]) if values.get(key, "").isdigit() else 0

        memory = values.get("MemoryCurrent", "")
        return cls(
            name=name,
            load=values.get("LoadState", ""),
            active=values.get("ActiveState", ""),
            sub=values.get("SubState", ""),
            result=values.get("Result", ""),
            main_pid=number("MainPID"),
            restarts=number("NRestarts"),
            file_state=values.get("UnitFileState", ""),
            cgroup=values.get("ControlGroup", ""),
            invocation=values.get("InvocationID", ""),
            drop_ins=tuple(values.get("DropInPaths", "").split()),
            needs_reload=values.get("NeedDaemonReload") == "yes",
            exit_code=values.get("ExecMainCode", ""),
            exit_status=values.get("ExecMainStatus", ""),
            # systemd prints "[not set]" or 2^64-1 where it keeps no account
            memory_bytes=int(memory) if memory.isdigit() and int(memory) < 1 << 63 else None,
            fragment=values.get("FragmentPath", ""),
        )


def _run(command: list[str], timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except FileNotFoundError as error:
        raise NO_SYSTEMD.error(
            f"there is no {command[0]} on this host", next="use a host whose init is systemd"
        ) from error


def show(name: str) -> UnitState:
    """The unit's state as systemd knows it; a unit that does not exist has load ``not-found``."""
    done = _run(["systemctl", "show", name, f"--property={','.join(_PROPERTIES)}"])
    if done.returncode != 0:
        raise SYSTEMCTL_FAILED.error(
            f"systemctl show {name} failed", evidence=done.stderr.splitlines(), next="systemctl status"
        )
    return UnitState.parse(name, done.stdout)


def systemctl(*words: str, timeout: float = 60.0) -> None:
    """Run a systemctl verb; raises systemctl-failed with its words."""
    done = _run(["systemctl", *words], timeout)
    if done.returncode != 0:
        raise SYSTEMCTL_FAILED.error(
            f"systemctl {' '.join(words)} failed with {done.returncode}",
            evidence=(done.stderr or done.stdout).splitlines()[-10:],
            next=f"systemctl status {words[-1]}",
        )


def forget_failures(name: str) -> None:
    """Reset the unit's failure and its count of starts, so that a start is not refused for those before it.

    Starts by hand count for StartLimitBurst= too: there and back again twice in ten minutes would be refused.
    """
    _run(
        ["systemctl", "reset-failed", name]
    )  # fails when systemd has forgotten the unit, and then needs nothing


@dataclass(frozen=True)
class JournalPart:
    """Lines of a unit's journal and the cursor to read on from."""

    lines: list[str]
    cursor: str


def journal(
    unit: str, *, invocation: str = "", after: str = "", last: int = 0, since_boot: bool = True
) -> JournalPart:
    """The unit's messages: those of one start (``invocation``), after a cursor, or the ``last`` n."""
    command = ["journalctl", "--no-pager", "--quiet", "--output=json", "--output-fields=MESSAGE"]
    command += ["--boot"] if since_boot else []
    command += [f"--after-cursor={after}"] if after else []
    command += [f"--lines={last}"] if last else []
    if (
        invocation
    ):  # the first field stands on what the process says, the second on what systemd says about it
        command += [f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}"]
    else:
        command += [f"--unit={unit}"]
    done = _run(command)
    lines, cursor = [], after
    for row in done.stdout.splitlines():
        try:
            entry = json.loads(row)
        except ValueError:
            continue
        cursor = str(entry.get("__CURSOR") or cursor)
        message = entry.get("MESSAGE")
        if isinstance(message, list):  # journald gives bytes when a message is not clean UTF-8
            message = bytes(message).decode(errors="replace")
        if isinstance(message, str):
            lines.append(message)
    return JournalPart(lines, cursor)
