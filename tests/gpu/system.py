"""Makes a copy of the machine's root (the overlay) into a host that systemd boots and ssh reaches."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

PORT = 2222
CACHES = "/var/cache/sglang/default/0.5.17"
MASKED = (
    # A namespace has no kernel, hardware, network or console of its own.
    "systemd-udevd.service",
    "systemd-udevd-kernel.socket",
    "systemd-udevd-control.socket",
    "systemd-udev-trigger.service",
    "systemd-networkd.service",
    "systemd-networkd-wait-online.service",
    "systemd-resolved.service",
    "systemd-timesyncd.service",
    "systemd-modules-load.service",
    "systemd-remount-fs.service",
    "systemd-logind.service",
    "console-getty.service",
    "getty@tty1.service",
    "getty.target",
    "dev-hugepages.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "tmp.mount",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "e2scrub_all.timer",
    "fstrim.timer",
)
# name: id. Package scripts would make them; nothing is installed here, only unpacked.
USERS = {"messagebus": 101, "sshd": 102, "systemd-network": 998, "systemd-journal": 997}
SSHD = f"""\
Port {PORT}
ListenAddress 127.0.0.1
HostKey /etc/ssh/ssh_host_ed25519_key
AuthorizedKeysFile /etc/ssh/authorized_keys
PermitRootLogin prohibit-password
UsePAM yes
UseDNS no
# Side instances are hosts to Ansible, and all knock at once.
MaxStartups 100
MaxSessions 100
Subsystem sftp internal-sftp
"""
CLIENT = ("openssh-client", "libedit2", "libfido2-1", "libcbor0.8", "libmd0", "libbsd0")
PROGRAMS = (
    "/usr/lib/systemd/systemd",
    "/usr/bin/systemctl",
    "/usr/bin/journalctl",
    "/usr/sbin/sshd",
    "/usr/bin/ssh",
)


class PrepareError(Exception):
    """What the machine lacks, in one line."""


def run(words: list[str], **options: object) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120, **options)  # type: ignore[call-overload]
    if done.returncode != 0:
        raise PrepareError(
            f"{' '.join(words[:6])}: exit {done.returncode}: {(done.stdout + done.stderr)[-600:]}"
        )
    return str(done.stdout)


def chroot(root: Path, *words: str) -> str:
    clean = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
    return run(["chroot", str(root), *words], env=clean)


def unpack_deb(deb: Path, root: Path) -> None:
    """The package's files that are not there yet. Nothing of the image is replaced."""
    archive = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE)
    words = ["tar", "--extract", "--directory", str(root), "--skip-old-files", "--keep-directory-symlink"]
    done = subprocess.run(words, stdin=archive.stdout, capture_output=True, text=True, check=False)
    if archive.wait() != 0 or done.returncode != 0:
        raise PrepareError(f"unpacking {deb.name}: {done.stderr[-300:]}")


def prepare(root: Path, debs: Path, ensurepip: Path, state: Path) -> None:
    """Everything that a boot needs, in ``root``; key, known hosts and ssh's configuration in ``state``."""
    for deb in sorted(debs.glob("*.deb")):
        unpack_deb(deb, root)
    chroot(root, "ldconfig")
    _require_libraries(root)
    _users(root)
    for unit in MASKED:
        link = root / "etc/systemd/system" / unit
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    (root / "var/log/journal").mkdir(parents=True, exist_ok=True)
    (root / "etc/machine-id").write_text("")
    (root / "etc/hostname").write_text("gpu\n")
    _sshd(root, state)
    _ensurepip(root, ensurepip)


def caches(root: Path, archive: Path) -> None:
    """Compile caches of an earlier machine, at the path that they were made for; systemd gives them to the service."""
    if archive.exists():
        place = root / CACHES.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive, "r:gz") as pieces:
            pieces.extractall(place, filter="data")
        print(f"host: compile caches of an earlier machine put into {CACHES}", flush=True)


def _require_libraries(root: Path) -> None:
    missing = [
        f"{program}: {line.strip()}"
        for program in PROGRAMS
        for line in chroot(root, "ldd", program).splitlines()
        if "not found" in line
    ]
    if missing:
        raise PrepareError("libraries are missing: " + "; ".join(missing))


def _users(root: Path) -> None:
    for name, number in USERS.items():
        group = f"getent group {name} >/dev/null || groupadd -r -g {number} {name} || groupadd -r {name}"
        user = f"getent passwd {name} >/dev/null || useradd -r -M -s /usr/sbin/nologin -g {name} {name}"
        chroot(root, "sh", "-c", f"({group}) && ({user})")


def _sshd(root: Path, state: Path) -> None:
    key = state / "id_ed25519"
    (root / "etc/ssh").mkdir(exist_ok=True)
    (root / "etc/ssh/sshd_config").write_text(SSHD)
    host_key = root / "etc/ssh/ssh_host_ed25519_key"
    for inside in ("/etc/ssh/ssh_host_ed25519_key", "/etc/ssh/client_key"):
        (root / inside.lstrip("/")).unlink(missing_ok=True)
        chroot(root, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "aerie-gpu", "-f", inside)
    shutil.move(root / "etc/ssh/client_key", key)
    shutil.move(root / "etc/ssh/client_key.pub", root / "etc/ssh/authorized_keys")
    key.chmod(0o600)
    kind, blob, *_ = Path(f"{host_key}.pub").read_text().split()
    (state / "known_hosts").write_text(f"gpu {kind} {blob}\n")
    (state / "ssh_config").write_text(
        f"Host gpu gpu-*\n  HostName 127.0.0.1\n  Port {PORT}\n  User root\n  HostKeyAlias gpu\n  IdentityFile {key}\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {state}/known_hosts\n  StrictHostKeyChecking yes\n"
    )
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    link = wants / "ssh.service"
    link.unlink(missing_ok=True)
    link.symlink_to("/lib/systemd/system/ssh.service")


def _ensurepip(root: Path, archive: Path) -> None:
    """Ubuntu ships venv without ensurepip; with it, the role makes environments as on any host."""
    answer = chroot(root, "/usr/bin/python3", "-c", _PROBE).split()
    if answer[1] == "yes" or not archive.exists():
        return
    with zipfile.ZipFile(archive) as pieces:
        pieces.extractall(root / answer[0].lstrip("/"))
    print(f"host: the image's python had no ensurepip; put into {answer[0]}")


_PROBE = """
import sysconfig
try:
    import ensurepip
    ok = "yes" if ensurepip._bootstrap is not None and ensurepip.version() else "no"
except Exception:
    ok = "no"
print(sysconfig.get_path("stdlib"), ok)
"""


def ssh_client(state: Path, debs: Path) -> Path:
    """The directory to put first on PATH so that `ssh` is there; the image may have none."""
    place = state / "bin"
    place.mkdir(exist_ok=True)
    if shutil.which("ssh") and shutil.which("sftp"):
        return place
    client = state / "client"
    (client / "usr/lib").mkdir(parents=True, exist_ok=True)
    if not (client / "lib").is_symlink():
        (client / "lib").symlink_to("usr/lib")
    for name in CLIENT:
        for deb in debs.glob(f"{name}_*.deb"):
            unpack_deb(deb, client)
    libraries = f"{client}/usr/lib/{os.uname().machine}-linux-gnu"
    # Ansible copies files with sftp, which starts ssh by a path of its own.
    for name, options in (("ssh", ""), ("sftp", f" -S {place}/ssh"), ("scp", f" -S {place}/ssh")):
        wrapper = place / name
        wrapper.write_text(
            f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {client}/usr/bin/{name}{options} "$@"\n'
        )
        wrapper.chmod(0o755)
    run([str(place / "ssh"), "-V"])
    return place


def controller(state: Path, wheels: Path) -> Path:
    """An environment with ansible-core; returns its bin. No index is asked."""
    place = state / "controller"
    if (place / "bin/ansible-playbook").exists():
        return place / "bin"
    python = place / "bin/python"
    run([sys.executable, "-m", "venv", "--without-pip", "--clear", str(place)])
    words = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
    ]
    words += ["--no-cache-dir", "--ignore-installed", *(str(wheel) for wheel in sorted(wheels.glob("*.whl")))]
    isolated = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    run(words, env={**isolated, "PIP_CONFIG_FILE": os.devnull, "PIP_ROOT_USER_ACTION": "ignore"})
    # numpy, scipy and matplotlib of the image, last on the path: the reports' figures are made by this controller.
    link = next((place / "lib").glob("python3*")) / "site-packages/zz_image.pth"
    link.write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return place / "bin"
