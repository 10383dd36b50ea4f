"""What runs, read from /proc: arguments, environment, start time, listening sockets and their owners."""

from __future__ import annotations

import os
import pwd
import re
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
LISTEN, ESTABLISHED = "0A", "01"  # TCP states in /proc/net/tcp


@dataclass(frozen=True)
class Process:
    """A process as it runs. ``start_ticks`` (clock ticks since boot) tells a pid's owners apart."""

    pid: int
    start_ticks: int
    user: str
    command: list[str]
    cgroup: str

    def describe(self) -> str:
        """``pid 812 (user ubuntu): python3 -m http.server`` for error messages."""
        from .gpu.holders import hidden_words

        text = " ".join(hidden_words(self.command)) or "?"
        unit = re.search(r"/([^/]+\.(?:service|scope))", self.cgroup)
        where = f", {unit.group(1)}" if unit else ""
        return f"pid {self.pid} (user {self.user}{where}): {text[:200]}"


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket and the processes that hold it (none when it cannot be told)."""

    address: str
    port: int
    pids: tuple[int, ...]

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError, NotADirectoryError):
        return None


def read_process(pid: int) -> Process | None:
    """The process, or None when it is gone or not ours to read."""
    stat, cmdline, cgroup = (_read(PROC / str(pid) / name) for name in ("stat", "cmdline", "cgroup"))
    if stat is None or cmdline is None:
        return None
    fields = stat.rpartition(b") ")[2].split()
    try:
        uid = (PROC / str(pid)).stat().st_uid
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = f"uid {uid}"
    except FileNotFoundError:
        return None
    words = [word.decode(errors="replace") for word in cmdline.split(b"\0")]
    return Process(
        pid,
        int(fields[19]),
        user,
        words[:-1] if words and not words[-1] else words,
        (cgroup or b"").decode().strip(),
    )


def read_environment(pid: int) -> dict[str, str] | None:
    """The environment that the process was started with, or None when it cannot be read."""
    data = _read(PROC / str(pid) / "environ")
    if data is None:
        return None
    pairs = (item.decode(errors="surrogateescape").partition("=") for item in data.split(b"\0") if item)
    return {name: value for name, _, value in pairs}


def seconds_since_start(process: Process) -> float:
    """Age of a process, from the kernel's uptime."""
    uptime = float((PROC / "uptime").read_text().split()[0])
    return max(0.0, uptime - process.start_ticks / os.sysconf("SC_CLK_TCK"))


def memory_bytes(pids: list[int]) -> int | None:
    """Memory of processes, shared pages counted once among them (Pss); None when none of it can be read."""
    total = 0
    for pid in pids:
        match = re.search(rb"^Pss:\s+(\d+) kB", _read(PROC / str(pid) / "smaps_rollup") or b"", re.MULTILINE)
        total += int(match.group(1)) << 10 if match else 0
    return total or None


def pids_in_cgroup(cgroup: str) -> list[int]:
    """Pids in a systemd cgroup (``/system.slice/x.service``) and below it, whatever the hierarchy."""
    found: set[int] = set()
    for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/systemd")):
        base = root / cgroup.lstrip("/")
        if cgroup and base.is_dir():
            for procs in [base / "cgroup.procs", *base.rglob("cgroup.procs")]:
                found |= {int(word) for word in (_read(procs) or b"").split()}
    return sorted(found)


def _address(text: str) -> tuple[str, int]:
    """``0100007F:1F90`` -> ``("127.0.0.1", 8080)``; the kernel prints 32-bit words in host byte order."""
    host, _, port = text.partition(":")
    words = [struct.pack("=I", int(host[i : i + 8], 16)) for i in range(0, len(host), 8)]
    packed = b"".join(words)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, packed), int(port, 16)


def parse_listeners(table: str) -> list[tuple[str, int, int]]:
    """``(address, port, inode)`` of each listening socket in the text of /proc/net/tcp or tcp6."""
    rows = []
    for line in table.splitlines()[1:]:
        columns = line.split()
        if len(columns) > 9 and columns[3] == LISTEN:
            rows.append((*_address(columns[1]), int(columns[9])))
    return rows


def parse_connections(table: str, port: int) -> int:
    """How many established connections to a local port the text of /proc/net/tcp or tcp6 shows."""
    rows = (line.split() for line in table.splitlines()[1:])
    return sum(1 for row in rows if len(row) > 9 and row[3] == ESTABLISHED and _address(row[1])[1] == port)


def connections(port: int) -> int:
    """Established connections to a port of this host: no more than so many requests run."""
    tables = ((_read(PROC / "net" / name) or b"").decode() for name in ("tcp", "tcp6"))
    return sum(parse_connections(text, port) for text in tables)


def listeners(port: int | None = None, pids: list[int] | None = None) -> list[Listener]:
    """Listening TCP sockets, all or those on ``port``; with ``pids``, only those that one of them holds."""
    rows = []
    for name in ("tcp", "tcp6"):
        rows += parse_listeners((_read(PROC / "net" / name) or b"").decode())
    rows = [row for row in rows if port is None or row[1] == port]
    owners = _socket_owners({inode for _, _, inode in rows}, pids) if rows else {}
    found = [Listener(address, number, tuple(owners.get(inode, ()))) for address, number, inode in rows]
    return [one for one in found if pids is None or one.pids]


def _socket_owners(inodes: set[int], pids: list[int] | None) -> dict[int, list[int]]:
    owners: dict[int, list[int]] = {}
    names = {f"socket:[{inode}]": inode for inode in inodes}
    for pid in pids if pids is not None else [int(p.name) for p in PROC.iterdir() if p.name.isdigit()]:
        try:
            links = list((PROC / str(pid) / "fd").iterdir())
        except OSError:
            continue
        for link in links:
            try:
                inode = names.get(str(link.readlink()))
            except OSError:
                continue
            if inode is not None and pid not in owners.setdefault(inode, []):
                owners[inode].append(pid)
    return owners
