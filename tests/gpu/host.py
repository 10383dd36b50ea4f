#!/usr/bin/env python3
"""A systemd host with the machine's GPUs, on a machine whose pid 1 is not systemd: `tests/gpu/host.py --help`.

`up` unpacks the pieces that pack.py made, boots systemd in namespaces over a copy of this machine's root, and returns
when ssh answers. `down` ends it by its pid. Needs root, Python 3.11 and overlayfs; nothing is installed on the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import namespace
import system
from testhosts.processes import Identity

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STATE = Path(os.environ.get("AERIE_GPU_STATE", "/opt/aerie-gpu"))
HOSTNAME = "gpu"
REFERENCE = "reference.safetensors"


def timed(text: str, work: Callable[[], object]) -> None:
    began = time.monotonic()
    work()
    print(f"host: {text}: {time.monotonic() - began:.1f} s", flush=True)


def unpack(pieces: Path) -> None:
    """Lay out what the carried pieces hold; a piece that is not here (yet) or laid out already is passed over."""
    STATE.mkdir(parents=True, exist_ok=True)
    for name in ("host", "wheels"):
        verify(pieces / name)
    if (pieces / "wheels/wheels.tar.xz").exists() and not (STATE / "lock.txt").exists():
        timed("wheelhouse", lambda: unpack_wheels(pieces / "wheels"))
    if (pieces / "host/models.tar.xz").exists() and not (STATE / "models/prompts.json").exists():
        timed("models and tools", lambda: unpack_models(pieces / "host"))


def verify(piece: Path) -> None:
    """Compare a piece's files with its manifest; ends when one is not what was packed."""
    try:
        wanted = json.loads((piece / "manifest.json").read_text())
    except OSError:
        return
    wrong = [
        name
        for name, digest in wanted.items()
        if not (piece / name).is_file() or hashlib.sha256((piece / name).read_bytes()).hexdigest() != digest
    ]
    if wrong:
        sys.exit(f"host: not as packed: {piece.name}: {', '.join(wrong[:5])}; carry the piece again")


def unpack_wheels(piece: Path) -> None:
    (STATE / "wheelhouse").mkdir(exist_ok=True)
    with tarfile.open(piece / "wheels.tar.xz", "r:xz") as archive:
        archive.extractall(STATE / "wheelhouse", filter="data")
    # Last: it says that the wheelhouse is whole.
    shutil.copyfile(piece / "lock.txt", STATE / "lock.txt")


def unpack_models(piece: Path) -> None:
    (STATE / "wheelhouse").mkdir(exist_ok=True)
    for wheel in (piece / "tools").glob("*.whl"):
        shutil.copy(wheel, STATE / "wheelhouse")
    models = STATE / "models"
    models.mkdir(exist_ok=True)
    with tarfile.open(piece / "models.tar.xz", "r:xz") as archive:
        archive.extractall(models, filter="data")
    # Last: it says that the models are whole.
    shutil.copyfile(HERE / "prompts.json", models / "prompts.json")


def supervisor_record() -> dict[str, object]:
    try:
        return dict(json.loads((STATE / "supervisor.json").read_text()))
    except (OSError, ValueError):
        return {}


def running() -> bool:
    identity = Identity.parse(supervisor_record())
    return identity is not None and identity.alive()


def start(pieces: Path) -> None:
    """Start the supervisor in a session of its own, so that it outlives the command that started it."""
    with (STATE / "host.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "host.py"), "_supervise", "--pieces", str(pieces)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    (STATE / "supervisor.json").write_text(json.dumps(Identity.of(process.pid).as_json()))


def ssh(*words: str, timeout: float = 20) -> subprocess.CompletedProcess[str]:
    """A command in the host, over ssh."""
    path = {**os.environ, "PATH": f"{STATE}/bin:{os.environ['PATH']}"}
    command = ["ssh", "-F", str(STATE / "ssh_config"), "-o", "ConnectTimeout=5", HOSTNAME, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout, env=path)


def log_tail(lines: int = 40) -> str:
    return "\n".join((STATE / "host.log").read_text(errors="replace").splitlines()[-lines:])


def wait_for_ssh(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not running():
            sys.exit(f"host: it ended while booting. Its log:\n{log_tail()}")
        if (STATE / "ssh_config").exists() and ssh("true").returncode == 0:
            return
        time.sleep(0.3)
    sys.exit(f"host: ssh did not answer in {seconds:.0f} s. Its log:\n{log_tail()}")


def up(pieces: Path, seconds: float) -> None:
    if running():
        print("host: it runs already")
        return
    unpack(pieces)
    made = make_models()
    timed("ssh client", lambda: system.ssh_client(STATE, pieces / "host/debs"))
    timed("controller", lambda: system.controller(STATE, pieces / "host/controller"))
    (STATE / "ssh_config").unlink(missing_ok=True)
    start(pieces)
    timed("boot until ssh answers", lambda: wait_for_ssh(seconds))
    state = ssh("systemctl", "is-system-running", "--wait", timeout=60).stdout.strip()
    failed = ssh("systemctl", "--failed", "--no-legend").stdout.strip()
    print(f"host: systemd says {state}; failed units: {failed or 'none'}", flush=True)
    compile_image()
    timed("wrong drafts and reference", lambda: [process.wait() for process in made])


def make_models() -> list[subprocess.Popen[bytes]]:
    """Make the wrong drafts and the reference by the image's torch, while the host boots."""
    models = STATE / "models"
    if not (models / "target").is_dir():
        return []
    commands = (
        [str(HERE / "drafts.py"), str(models)],
        [str(HERE / "reference.py"), "--target", str(models / "target"), "--out", str(models / REFERENCE)],
    )
    return [subprocess.Popen([sys.executable, *command]) for command in commands]


def compile_image() -> None:
    """Byte-compile the image's packages in the host, in the background: the image came without, and each of a start's
    three processes would compile torch anew, since none may write there."""
    site = sysconfig.get_path("purelib")
    ssh(
        *("systemd-run", "--quiet", "--unit=byte-compile", "--nice=10"),
        *("/usr/bin/python3", "-m", "compileall", "-q", "-j", "12", site),
    )


def probes() -> tuple[tuple[str, str, bool, str], ...]:
    """What a GPU host must show before a playbook is worth its time.

    Title, command in the host, whether that must succeed, and a sign: on standard output when it must, else on
    standard error.
    """
    base = sysconfig.get_path("purelib")
    torch = (
        f"import site; site.addsitedir('{base}'); import torch; "
        "print('sum', torch.ones(4, device='cuda').sum().item())"
    )
    header = "import os, sysconfig; print(os.path.exists(sysconfig.get_path('include') + '/Python.h'))"
    library = (
        "import ctypes; [ctypes.CDLL(x) for x in ('libcuda.so.1', 'libnvidia-ml.so.1')]; print('both found')"
    )
    closed = "systemd-run --quiet --wait --pipe -p User=nobody -p DevicePolicy=closed"
    return (
        ("driver libraries", f'python3 -c "{library}"', True, "both found"),
        # Triton compiles against it; without it, try --set sglang_install_python=/opt/torch/.venv/bin/python3.
        ("Python.h of /usr/bin/python3", f'python3 -c "{header}"', True, "True"),
        # Without it: --set sglang_server_traffic_control=false.
        (
            "nftables in the kernel",
            "nft add table inet probe && nft delete table inet probe && echo done",
            True,
            "done",
        ),
        ("a closed unit has no GPU", f"{closed} head -c 0 /dev/nvidiactl", False, "not permitted"),
        (
            "an allowed one has, unprivileged",
            f"{closed} -p 'DeviceAllow=char-nvidia* rw' /usr/bin/python3 -c \"{torch}\"",
            True,
            "sum 4.0",
        ),
    )


def probe() -> bool:
    good = True
    for title, command, succeeds, sign in probes():
        began = time.monotonic()
        done = ssh(command, timeout=120)
        fine = (done.returncode == 0) == succeeds and sign in (done.stdout if succeeds else done.stderr)
        good = good and fine
        verdict = "yes" if fine else f"NO: {(done.stdout + done.stderr).strip()[-600:]}"
        print(f"host: {title}: {verdict} ({time.monotonic() - began:.1f} s)", flush=True)
    return good


def down() -> None:
    namespace.end(supervisor_record())
    (STATE / "supervisor.json").unlink(missing_ok=True)


def supervise(pieces: Path) -> int:
    def prepare(root: Path) -> None:
        host = pieces / "host"
        timed("root made", lambda: system.prepare(root, host / "debs", host / "ensurepip.zip", STATE))
        system.caches(root, host / "caches.tar.gz")

    try:
        return namespace.supervise(STATE, HOSTNAME, prepare)
    except (OSError, system.PrepareError) as error:
        print(f"host: {type(error).__name__}: {error}", flush=True)
        return 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("unpack", "up", "probe", "down", "log", "_supervise"))
    parser.add_argument("--pieces", type=Path, default=ROOT / ".cache/gpu")
    parser.add_argument("--seconds", type=float, default=60, help="how long ssh may take to answer")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("namespaces and mounts need root")
    if options.command == "_supervise":
        return supervise(options.pieces)
    try:
        perform(options.command, options.pieces, options.seconds)
    except system.PrepareError as error:
        sys.exit(f"host: {error}")
    return 0


def perform(command: str, pieces: Path, seconds: float) -> None:
    if command == "unpack":
        unpack(pieces)
    elif command == "up":
        up(pieces, seconds)
    elif command == "probe":
        if not probe():
            sys.exit(1)
    elif command == "down":
        down()
    else:
        print(log_tail(200))


if __name__ == "__main__":
    sys.exit(main())
