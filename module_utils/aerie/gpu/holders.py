"""Who a pid is: user, command line, systemd unit or container, since when. Reads ``/proc``, changes nothing."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .readings import GpuProcess, GpuReading, to_mib

PROC = Path("/proc")
COMMAND_LENGTH = 240

_SECRET_WORDS = {"key", "apikey", "token", "secret", "password", "passwd", "pwd", "credential", "credentials"}
_RUNTIMES = {"docker": "docker", "libpod": "podman", "cri-containerd": "containerd", "crio": "cri-o"}
_CONTAINER_ID = re.compile(r"(?:([a-z][a-z-]*)[-:/])?([0-9a-f]{64})(?:\.scope)?$")
_NAMED_CONTAINER = re.compile(r"^(?:lxc\.payload\.|machine-|systemd-nspawn@)(.+?)(?:\.scope|\.service)?$")


@dataclass(frozen=True)
class Identity:
    """A living process of this pid namespace. ``since``: UTC, ISO 8601. ``state``: letter of ``/proc/<pid>/stat``."""

    pid: int
    user: str
    command: str
    state: str
    since: str | None
    unit: str | None = None
    container: str | None = None
    runtime: str | None = None


@dataclass(frozen=True)
class Holder:
    """One process that holds one GPU. ``who`` is None when ``/proc`` does not show the pid."""

    gpu: GpuReading
    process: GpuProcess
    who: Identity | None

    def said(self) -> str:
        """One line for a person."""
        mib = to_mib(self.process.used)
        size = "memory not attributed by the driver" if mib is None else f"{mib} MiB"
        head = f"{self.gpu.label}: pid {self.process.pid} ({self.process.kind}), {size}"
        if self.who is None:
            return (
                f"{head}: no such process is visible here; it runs in another pid namespace (a container, another"
                f" host view), or it has exited and the driver is still freeing its memory"
            )
        return f"{head}, {describe(self.who)}"

    def as_result(self) -> dict[str, Any]:
        who = self.who
        return {
            "gpu": self.gpu.index,
            "mig_index": self.gpu.mig_index,
            "uuid": self.gpu.uuid,
            "pid": self.process.pid,
            "kind": self.process.kind,
            "mib": to_mib(self.process.used),
            "visible": who is not None,
            "user": who.user if who else None,
            "command": who.command if who else None,
            "unit": who.unit if who else None,
            "container": who.container if who else None,
            "runtime": who.runtime if who else None,
            "since": who.since if who else None,
        }


def describe(who: Identity) -> str:
    """``user alice, since …, unit x.service: command``; says so when the process cannot be ended now."""
    parts = [f"user {who.user}"]
    if who.since:
        parts.append(f"since {who.since}")
    if who.container:
        parts.append(f"{who.runtime} container {who.container[:12]}")
    elif who.unit:
        parts.append(f"unit {who.unit}")
    if who.state == "D":
        parts.append("in uninterruptible sleep (a signal cannot end it now)")
    return f"{', '.join(parts)}: {who.command}"


def identify(pid: int, proc: Path = PROC) -> Identity | None:
    """Who ``pid`` is, or None when no such living process is visible. A zombie has exited: None."""
    folder = proc / str(pid)
    try:
        stat = (folder / "stat").read_text(errors="replace")
        status = (folder / "status").read_text(errors="replace")
    except OSError:
        return None
    comm, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    if not fields or fields[0] in ("Z", "X"):
        return None
    unit, container, runtime = parse_cgroup(_read(folder / "cgroup"))
    return Identity(
        pid=pid,
        user=_user(status),
        command=command_line(_read(folder / "cmdline")) or f"[{comm}]",
        state=fields[0],
        since=_since(fields, proc),
        unit=unit,
        container=container,
        runtime=runtime,
    )


def command_line(raw: str) -> str:
    """Arguments as in ``/proc/<pid>/cmdline``, values of secret options masked, cut to a readable length."""
    text = " ".join(" ".join(hidden_words(raw.rstrip("\0").split("\0"))).split())
    return text if len(text) <= COMMAND_LENGTH else f"{text[:COMMAND_LENGTH]}…"


def hidden_words(words: Iterable[str]) -> list[str]:
    """A command line with the values of secret options masked."""
    masked: list[str] = []
    hide_next = False
    for arg in words:
        name, equals, _ = arg.partition("=")
        if hide_next and not arg.startswith("--"):
            masked.append("***")
        elif len(arg.split()) > 1 and any(is_secret(word.partition("=")[0]) for word in arg.split()):
            masked.append(" ".join(hidden_words(arg.split())))  # a whole command as one argument of a shell
        elif equals and is_secret(name):
            masked.append(f"{name}=***")
        else:
            masked.append(re.sub(r"://[^/@\s]+@", "://***@", arg))
        hide_next = not equals and arg.startswith("-") and is_secret(name)
    return masked


def parse_cgroup(text: str) -> tuple[str | None, str | None, str | None]:
    """(unit, container, runtime) from ``/proc/<pid>/cgroup``, of version 2 (``0::/path``) or version 1."""
    lines = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    for _, _, path in lines:
        found = _container(path)
        if found:
            return None, found[0], found[1]
    # Version 1 keeps systemd's tree in a hierarchy of its own; version 2 has one line, with number 0. Where both are
    # mounted either may be the one that systemd uses, and the other says "/".
    units = [_unit(path) for number, names, path in lines if names == "name=systemd" or number == "0"]
    return next((unit for unit in units if unit), None), None, None


def device_openers(minor: int, proc: Path = PROC) -> list[int]:
    """Pids that have ``/dev/nvidia<minor>`` open. Without root only one's own processes can be looked into."""
    device = f"/dev/nvidia{minor}"
    found = []
    for folder in proc.iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        if any(link == device for link in _links(folder / "fd")):
            found.append(int(folder.name))
    return sorted(found)


def _links(folder: Path) -> Iterable[str]:
    try:
        entries = list(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        try:
            yield str(entry.readlink())
        except OSError:
            continue


def _container(path: str) -> tuple[str, str] | None:
    parts = [part for part in path.split("/") if part]
    for position, part in enumerate(parts):
        found = _CONTAINER_ID.search(part)
        if found:
            before = parts[position - 1] if position else ""
            hint = found.group(1) or before
            named = next((name for key, name in _RUNTIMES.items() if key == hint.split(":")[-1]), None)
            kubernetes = "kubernetes" if any("kubepods" in p for p in parts) else "a"
            return found.group(2), named or kubernetes
        named_container = _NAMED_CONTAINER.match(part)
        if named_container:
            return named_container.group(1), "lxc" if part.startswith("lxc") else "machine"
        if part == "lxc" and position + 1 < len(parts):
            return parts[position + 1], "lxc"
    return None


def _unit(path: str) -> str | None:
    parts = path.split("/")
    for ending in (".service", ".scope"):
        for part in reversed(parts):
            if part.endswith(ending):
                return part
    return None


def is_secret(option: str) -> bool:
    """Whether an option or variable of this name holds something to keep to oneself."""
    return any(word in _SECRET_WORDS for word in re.split(r"[-_.]+", option.lower()))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _user(status: str) -> str:
    found = re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE)
    if not found:
        return "unknown"
    try:
        return pwd.getpwuid(int(found.group(1))).pw_name
    except KeyError:
        return f"uid {found.group(1)}"


def _since(fields: list[str], proc: Path) -> str | None:
    """Start time: field 22 of stat (ticks after boot; the 20th after the command) plus ``btime``."""
    boot = re.search(r"^btime (\d+)", _read(proc / "stat"), re.MULTILINE)
    if not boot or len(fields) < 20:
        return None
    seconds = int(boot.group(1)) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return datetime.fromtimestamp(seconds, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
