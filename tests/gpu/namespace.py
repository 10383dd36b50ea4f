"""The process that holds the GPU host: namespaces, an overlay over the machine's own root, and systemd as pid 1.

machine: supervisor -> keeper -> pid 1 of the host. The kernel kills each with its parent; mounts and namespaces hang on
these processes alone. Killing the supervisor takes everything with it, and the machine's root was never written to.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hosts"))

from testhosts import cgroups, syscalls
from testhosts.processes import Identity
from testhosts.syscalls import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    MS_SHARED,
)

MS_MOVE = 8192
GROUP = "aerie-gpu"
# What an upper layer may grow to: two releases, the deployments' copies, compile caches.
ROOM = "24g"
STRICT = MS_NOSUID | MS_NODEV | MS_NOEXEC
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# The kernel's own file systems, which the host mounts anew.
OWN_TREES = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp")


def inner_mounts(mountinfo: str, state: str) -> list[str]:
    """Mount points of the machine that an overlay over / does not show: the driver's folder, bound files.

    mountinfo: the text of /proc/self/mountinfo; state: directory of the host itself, left out.
    """
    points = []
    for line in mountinfo.splitlines():
        point = line.split()[4].replace("\\040", " ")
        skipped = any(point == tree or point.startswith(f"{tree}/") for tree in (*OWN_TREES, state))
        if point != "/" and not skipped and point not in points:
            points.append(point)
    return sorted(points)


def gpu_devices() -> list[str]:
    """The driver's device nodes, those in subdirectories too."""
    found = [
        *Path("/dev").glob("nvidia*"),
        *Path("/dev").glob("nvidia-caps/*"),
        *Path("/dev").glob("infiniband/*"),
    ]
    return sorted(str(path) for path in found if path.is_char_device())


def supervise(state: Path, hostname: str, prepare: Callable[[Path], None]) -> int:
    """Mount, prepare and boot. Runs as long as the host; returns 0 when that powered itself off.

    prepare: makes the merged root into a systemd host; called with it before the boot.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", flags=MS_REC | MS_PRIVATE)
    layer = state / "layer"
    layer.mkdir(exist_ok=True)
    outside = inner_mounts(Path("/proc/self/mountinfo").read_text(), str(state))
    # tmpfs: an upper layer may not lie in its own lower one, and the machine's root may be an overlay itself.
    syscalls.mount("tmpfs", str(layer), "tmpfs", 0, f"size={ROOM},mode=755")
    for name in ("upper", "work", "merged"):
        (layer / name).mkdir()
    root = layer / "merged"
    options = f"lowerdir=/,upperdir={layer}/upper,workdir={layer}/work"
    syscalls.mount("overlay", str(root), "overlay", options=options)
    for point in outside:
        try:
            _bind(point, f"{root}{point}")
        except OSError as error:
            print(f"host: {point} is not shown in the host: {error}", flush=True)
    prepare(root)
    for name in ("wheelhouse", "models"):
        if (state / name).is_dir():
            _bind(str(state / name), f"{root}/srv/{name}", read_only=True)
    _cgroup2(layer)
    groups = cgroups.create(GROUP, "unified")
    sys.stdout.flush()
    keeper = os.fork()
    if keeper == 0:
        _keep(state, root, hostname, groups)
    _, status = os.waitpid(keeper, 0)
    cgroups.remove(GROUP)
    return 0 if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 else 1


def _cgroup2(layer: Path) -> None:
    if cgroups.parse_mounts(Path("/proc/self/mountinfo").read_text()) is None:
        (layer / "cgroup").mkdir()
        syscalls.mount("cgroup2", str(layer / "cgroup"), "cgroup2", STRICT)


def _keep(state: Path, root: Path, hostname: str, groups: list[Path]) -> None:
    """A process can make only one pid namespace for its children, hence this one between."""
    code = 1
    try:
        syscalls.die_with_parent()
        syscalls.unshare(syscalls.CLONE_NEWPID)
        child = os.fork()
        if child == 0:
            _init(root, hostname, groups)
        (state / "init.pid").write_text(f"{child}\n")
        _, status = os.waitpid(child, 0)
        # reboot(2) in a pid namespace kills its pid 1: by SIGINT to power off.
        code = 0 if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGINT else 1
        print(f"host: pid 1 ended with wait status {status:#x}")
    except OSError:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _init(root: Path, hostname: str, groups: list[Path]) -> None:
    try:
        syscalls.die_with_parent()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        # Joined first: the group that a process is in when it unshares is the root that the host sees.
        cgroups.join(groups)
        syscalls.unshare(
            syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWCGROUP
        )
        os.umask(0o022)
        _kernel_file_systems(str(root))
        _devices(str(root))
        _shield_machine(str(root))
        socket.sethostname(hostname)
        os.chdir(root)
        _become_root()
        # systemd propagates mounts into its services.
        syscalls.mount("none", "/", flags=MS_REC | MS_SHARED)
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        os.execve(
            "/usr/lib/systemd/systemd",
            ["systemd", "--log-target=console"],
            {"PATH": path, "container": "aerie-gpu"},
        )
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(70)


def _become_root() -> None:
    """The working directory becomes /. pivot_root(2) refuses a machine that never left its first root file system;
    there the mount is moved over it, as switch_root does."""
    try:
        syscalls.pivot_root_here()
    except OSError as error:
        print(f"host: {error}; moving the root instead", flush=True)
        syscalls.mount(".", "/", flags=MS_MOVE)
        os.chroot(".")
        os.chdir("/")


def _kernel_file_systems(root: str) -> None:
    syscalls.mount("proc", f"{root}/proc", "proc", STRICT)
    syscalls.mount("sysfs", f"{root}/sys", "sysfs", STRICT | MS_RDONLY)
    syscalls.mount("cgroup2", f"{root}/sys/fs/cgroup", "cgroup2", STRICT)
    syscalls.mount("tmpfs", f"{root}/dev", "tmpfs", MS_NOSUID, "mode=755,size=16m")
    syscalls.mount("tmpfs", f"{root}/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    syscalls.mount("tmpfs", f"{root}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")


def _devices(root: str) -> None:
    for path in (*(f"/dev/{name}" for name in DEVICES), *gpu_devices()):
        target = Path(f"{root}{path}")
        target.parent.mkdir(exist_ok=True)
        target.touch()
        syscalls.mount(path, str(target), flags=MS_BIND)
    for name in ("pts", "shm", "mqueue"):
        Path(f"{root}/dev/{name}").mkdir()
    syscalls.mount(
        "devpts", f"{root}/dev/pts", "devpts", MS_NOSUID, "newinstance,ptmxmode=0666,mode=620,gid=5"
    )
    syscalls.mount("tmpfs", f"{root}/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd"}
    links |= {name: f"/proc/self/fd/{number}" for number, name in enumerate(("stdin", "stdout", "stderr"))}
    for name, target in links.items():
        Path(f"{root}/dev/{name}").symlink_to(target)


def _shield_machine(root: str) -> None:
    # A sysctl written in the host would change the whole machine.
    tree = f"{root}/proc/sys"
    syscalls.mount(tree, tree, flags=MS_BIND)
    syscalls.mount("none", tree, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | STRICT)
    trigger = f"{root}/proc/sysrq-trigger"
    if Path(trigger).exists():
        syscalls.mount("/dev/null", trigger, flags=MS_BIND)


def _bind(source: str, destination: str, *, read_only: bool = False) -> None:
    target = Path(destination)
    if Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    syscalls.mount(source, destination, flags=MS_BIND)
    if read_only:
        syscalls.mount("none", destination, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def end(record: dict[str, object]) -> None:
    """Kill the supervisor that the record names, and what is left in the host's control group."""
    supervisor = Identity.parse(record)
    if supervisor is not None:
        supervisor.send(signal.SIGKILL)
        supervisor.wait(10)
    if cgroups.parse_mounts(Path("/proc/self/mountinfo").read_text()) is not None:
        cgroups.remove(GROUP)
