"""The root file system that hosts of a suite share, built once and kept until its recipe changes."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import cgroups, syscalls
from .errors import HostsError
from .files import locked, read_json, write_json
from .layout import SUITES, Layout
from .processes import Identity

PACKAGES = (
    # what makes it a host
    *(
        "systemd",
        "systemd-sysv",
        "dbus",
        "openssh-server",
        "iproute2",
        "procps",
        "sudo",
        "kmod",
        "ca-certificates",
    ),
    # what Ansible needs
    *("python3", "python3-apt", "python3-debian"),
    # what SGLang needs, and what its role uses
    *("python3-venv", "libnuma1", "libgomp1", "nftables"),
)
# Measured, see README.md: (download, on disk) in MB.
SIZES = {"bookworm": (77, 225), "trixie": (70, 170)}
MASKED = (
    # A namespace has no kernel of its own to load modules into; on trixie the unit fails and the host is "degraded".
    "systemd-modules-load.service",
    # eth0 is set up from outside, so nobody would ever report it online.
    "systemd-networkd-wait-online.service",
    # They would start apt behind a test's back.
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
)
SSHD = """\
# The key is made by the test-host tool before the first boot, so that it is known and never trusted on first use.
HostKey /etc/ssh/ssh_host_ed25519_key
# There is no name server to ask.
UseDNS no
"""
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LOCAL_CERTIFICATES = Path("/usr/local/share/ca-certificates")


def hooks() -> list[str]:
    """Shell lines for mmdebstrap; $1 is the new root."""
    lines = [
        # Belong to one host each; an image that had them would give all hosts the same ones.
        'rm -f "$1"/etc/ssh/ssh_host_*',
        ': > "$1"/etc/machine-id',
        f'printf %s {shlex.quote(SSHD)} > "$1"/etc/ssh/sshd_config.d/00-hosts.conf',
        # No name server: an empty file makes look-ups fail at once instead of after a timeout.
        'rm -f "$1"/etc/resolv.conf; : > "$1"/etc/resolv.conf',
        # So that pip and apt in a host also work behind a private certificate authority.
        f'mkdir -p "$1"{LOCAL_CERTIFICATES}; for c in {LOCAL_CERTIFICATES}/*.crt; do '
        f'if [ -e "$c" ]; then cp "$c" "$1"{LOCAL_CERTIFICATES}/; fi; done; chroot "$1" update-ca-certificates',
    ]
    return lines + [f'ln -sf /dev/null "$1"/etc/systemd/system/{unit}' for unit in MASKED]


def recipe(suite: str) -> dict[str, Any]:
    """All that decides what the image holds, but for the archive's own state."""
    certificates = {path.name: path.read_text() for path in sorted(LOCAL_CERTIFICATES.glob("*.crt"))}
    return {"suite": suite, "packages": PACKAGES, "hooks": hooks(), "certificates": certificates}


def image_key(suite: str) -> str:
    digest = hashlib.sha256(json.dumps(recipe(suite), sort_keys=True).encode()).hexdigest()
    return f"{suite}-{digest[:12]}"


def sources(suite: str, release: str) -> list[str]:
    """Where packages come from: the machine's own lists when it runs the suite (they may name a nearer mirror, and
    include security updates), else AERIE_HOSTS_MIRROR, else mmdebstrap's own choice.

    release: the text of /etc/os-release.
    """
    if os.environ.get("AERIE_HOSTS_MIRROR"):
        return [os.environ["AERIE_HOSTS_MIRROR"]]
    if f"VERSION_CODENAME={suite}" in release.splitlines() and "ID=debian" in release.splitlines():
        for path in ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"):
            if Path(path).exists():
                return [path]
    return []


def build_command(suite: str, root: Path) -> list[str]:
    command = ["mmdebstrap", "--mode=root", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    command.append('--aptopt=Acquire::Languages "none"')
    command += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale", "man")]
    # A half-written image is thrown away anyway, so dpkg need not wait for the disk after each file.
    command.append("--dpkgopt=force-unsafe-io")
    command += [f"--customize-hook={line}" for line in hooks()]
    if KEYRING.exists():
        # Ubuntu's apt does not trust Debian's archive by itself.
        command.append(f"--keyring={KEYRING}")
    command += [suite, str(root), *sources(suite, Path("/etc/os-release").read_text())]
    # A mount namespace of its own, so that what a killed build had mounted in the new root is gone with it.
    return ["unshare", "--mount", "--propagation", "private", *command]


def ensure(layout: Layout, suite: str) -> str:
    """The key of the suite's image; builds it when the recipe has no image yet."""
    if suite not in SUITES:
        raise HostsError(f"no recipe for suite {suite!r}", next=f"choose one of: {', '.join(SUITES)}")
    key = image_key(suite)

    def waiting() -> None:
        say("waiting for another command that is building it")

    if not (layout.images / key / "image.json").exists():
        with locked(layout.locks / f"image-{suite}", waiting):
            if not (layout.images / key / "image.json").exists():
                _build(layout, suite, key)
    return key


def say(text: str, since: float | None = None) -> None:
    elapsed = "" if since is None else f"[{time.monotonic() - since:5.1f} s] "
    print(f"image: {elapsed}{text}", file=sys.stderr, flush=True)


def _build(layout: Layout, suite: str, key: str) -> None:
    began = time.monotonic()
    download, size = SIZES[suite]
    say(
        f"building {suite}: about {download} MB to download, {size} MB on disk, one to two minutes on two cores"
    )
    folder = layout.images / f".building-{key}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write_json(folder / "owner.json", Identity.own().as_json())
    try:
        _run_build(layout, suite, key, folder, began)
        megabytes = int(subprocess.check_output(["du", "-sm", str(folder / "root")]).split()[0])
        seconds = round(time.monotonic() - began, 1)
        write_json(folder / "image.json", {"suite": suite, "seconds": seconds, "megabytes": megabytes})
        (folder / "owner.json").unlink()
        folder.rename(layout.images / key)
        say(f"{suite} is ready: {megabytes} MB", began)
    finally:
        cgroups.remove(f"{layout.cgroup}/_image-{key}")
        shutil.rmtree(folder, ignore_errors=True)


def _run_build(layout: Layout, suite: str, key: str, folder: Path, began: float) -> None:
    # The group holds every process of the build, also those that would survive mmdebstrap.
    groups = cgroups.create(f"{layout.cgroup}/_image-{key}", "unified")

    def prepare() -> None:
        cgroups.join(groups)
        syscalls.die_with_parent(signal.SIGTERM)

    (folder / "tmp").mkdir()
    log: list[str] = []
    with subprocess.Popen(
        build_command(suite, folder / "root"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(folder / "tmp"), "LC_ALL": "C.UTF-8"},
        start_new_session=True,
        preexec_fn=prepare,
    ) as build:
        try:
            assert build.stdout is not None
            for line in build.stdout:
                log.append(line.rstrip())
                if line.startswith("I: ") and "--customize-hook" not in line:
                    say(line[3:].rstrip(), began)
        except BaseException:
            cgroups.remove(f"{layout.cgroup}/_image-{key}")
            raise
    if build.returncode != 0:
        raise HostsError(
            f"mmdebstrap could not build {suite} (exit {build.returncode})",
            evidence=log[-15:],
            next="see the lines above; a mirror that answers can be given in AERIE_HOSTS_MIRROR",
        )


def prune(layout: Layout, used: set[str]) -> None:
    """Remove images of old recipes that no host and no snapshot stands on."""
    wanted = used | {image_key(suite) for suite in SUITES}
    for folder in layout.images.iterdir():
        if not folder.name.startswith(".") and folder.name not in wanted:
            shutil.rmtree(folder, ignore_errors=True)


def info(layout: Layout, key: str) -> dict[str, Any]:
    return read_json(layout.images / key / "image.json") or {}
