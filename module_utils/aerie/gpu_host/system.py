"""Read the host around the GPUs: devices, services, the kernel log, limits, interfaces, files. Thin, read only.

Whatever cannot be read is None or absent; nothing here raises for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import re
import socket
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..gpu.driver import pci_gpus
from .facts import FabricManager, HostFacts, Interface, UnitEnvironment

_LOG_PATTERN = r"NVRM: (Xid|loading NVIDIA UNIX)|fallen off the bus"
_IFF_RUNNING = 0x40
_SIOCGIFFLAGS = 0x8913
_SIOCGIFADDR = 0x8915


def read_host(
    *,
    service_user: str | None,
    with_units: bool,
    conf_file: str | None = None,
    root: Path = Path("/"),
) -> HostFacts:
    """Everything about the host. service_user: whose ``.nccl.conf`` counts. conf_file: NCCL_CONF_FILE, instead of it.

    with_units: also the environment of the server units. root: for tests; commands always ask the real host.
    """
    switches = sorted(
        str(path) for path in (root / "dev").glob("nvidia-nvswitch*") if path.name[-1].isdigit()
    )
    log, source = read_kernel_log() if pci_gpus(root / "sys/bus/pci/devices") or switches else ((), "no GPU")
    shm_total, shm_free = _room(root / "dev/shm")
    return HostFacts(
        pci_gpus=tuple(pci_gpus(root / "sys/bus/pci/devices")),
        nvswitches=tuple(switches),
        fabric_manager=read_fabric_manager() if switches else None,
        kernel_log=log,
        kernel_log_source=source,
        shm_total_mib=shm_total,
        shm_free_mib=shm_free,
        nr_open=_number(root / "proc/sys/fs/nr_open"),
        pid_max=_number(root / "proc/sys/kernel/pid_max"),
        max_map_count=_number(root / "proc/sys/vm/max_map_count"),
        interfaces=tuple(read_interfaces()),
        nccl_files=read_nccl_files(service_user, conf_file, root),
        units=tuple(read_units()) if with_units else (),
    )


def read_kernel_log() -> tuple[tuple[str, ...] | None, str]:
    """The driver's fault lines since boot, and where they come from; None when neither log may be read."""
    done = _run(
        ["journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--output=short-iso", f"--grep={_LOG_PATTERN}"]
    )  # fmt: skip
    # 0: found, 1 without a word: nothing found. A journal that may not be read gives a word, or another status.
    if done is not None and (done.returncode == 0 or (done.returncode == 1 and not done.stderr.strip())):
        return tuple(done.stdout.splitlines()), "journalctl --dmesg"
    done = _run(["dmesg"])
    if done is not None and done.returncode == 0:
        return tuple(line for line in done.stdout.splitlines() if re.search(_LOG_PATTERN, line)), "dmesg"
    return None, "not readable"


def read_fabric_manager() -> FabricManager:
    """State and version of the fabric manager."""
    done = _run(
        [
            "systemctl",
            "show",
            "nvidia-fabricmanager.service",
            "--property=LoadState",
            "--property=ActiveState",
        ]
    )
    words = dict(line.partition("=")[::2] for line in (done.stdout if done else "").splitlines())
    active = words.get("ActiveState", "unknown")
    if words.get("LoadState") not in (None, "loaded"):
        active = words["LoadState"]
    said = _run(["nv-fabricmanager", "--version"])
    version = re.search(r"\d+\.\d+(?:\.\d+)?", said.stdout) if said else None
    return FabricManager(active, version.group(0) if version else None)


def read_interfaces() -> list[Interface]:
    """All interfaces with the two things that NCCL asks: running, and an IPv4 or IPv6 address."""
    six = set()
    try:
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            address, *_, name = line.split()
            if address != "0" * 31 + "1":
                six.add(name)
    except (OSError, ValueError):
        pass
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                flags = struct.unpack_from("16xH", fcntl.ioctl(asked, _SIOCGIFFLAGS, request))[0]
            except OSError:
                continue
            try:
                fcntl.ioctl(asked, _SIOCGIFADDR, request)
                addressed = True
            except OSError:
                addressed = name in six
            found.append(Interface(name, bool(flags & _IFF_RUNNING), addressed))
    return found


def read_nccl_files(user: str | None, conf_file: str | None, root: Path) -> dict[str, str]:
    """NCCL's files in its order: NCCL_CONF_FILE or else the user's, then the system's."""
    paths = [conf_file] if conf_file else []
    if not conf_file and user:
        with contextlib.suppress(KeyError):  # the user comes with sglang_install
            paths.append(f"{pwd.getpwnam(user).pw_dir}/.nccl.conf")
    found = {}
    for path in [*paths, "/etc/nccl.conf"]:
        try:
            found[path] = (root / path.lstrip("/")).read_text(errors="replace")
        except OSError:
            continue
    return found


def read_units() -> list[UnitEnvironment]:
    """Environment of every loaded unit sglang-*.service, and of its main process where it may be read."""
    done = _run(
        [
            "systemctl",
            "show",
            "sglang-*.service",
            "--property=Id",
            "--property=MainPID",
            "--property=Environment",
        ]
    )
    found = []
    for block in (done.stdout if done else "").split("\n\n"):
        words = dict(line.partition("=")[::2] for line in block.splitlines() if "=" in line)
        if words.get("Id"):
            pid = int(words.get("MainPID") or 0)
            environment = environment_of(words.get("Environment", ""))
            found.append(UnitEnvironment(words["Id"], environment, pid, read_process(pid)))
    return found


def environment_of(line: str) -> dict[str, str]:
    """``systemctl show``'s Environment: assignments; those with special characters in double quotes, where a
    backslash stands before a quote, a backslash, a backtick and a dollar sign."""
    words = re.findall(r'"((?:\\.|[^"\\])*)"|(\S+)', line)
    plain = [re.sub(r"\\(.)", r"\1", quoted) if quoted else bare for quoted, bare in words]
    return dict(word.partition("=")[::2] for word in plain if "=" in word)


def read_process(pid: int, root: Path = Path("/proc")) -> dict[str, str] | None:
    """The environment that a process was started with; None for no process, or one that may not be read."""
    if not pid:
        return None
    try:
        words = (root / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return dict(word.decode(errors="replace").partition("=")[::2] for word in words if b"=" in word)


def _room(path: Path) -> tuple[int | None, int | None]:
    try:
        there = os.statvfs(path)
    except OSError:
        return None, None
    return there.f_blocks * there.f_frsize >> 20, there.f_bavail * there.f_frsize >> 20


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """Run a command that only reads; None when it is not there or does not end in ten seconds."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            list(command), capture_output=True, text=True, errors="replace", timeout=10, check=False, env=environment
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
