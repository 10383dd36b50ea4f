#!/usr/bin/env python3
"""The doubles of a rehearsal: `doubles/place.py HOST STATE CARDS SERVER`. Needs the test host to run (tests/hosts).

Copies the library (tests/nvml) and its scenario into the host, and writes under STATE/nvml what the machine around it
shall see: the same cards and the same processes, whose control groups have longer paths there. SERVER `double` puts
tests/server_double in the place of SGLang's launch_server in the host; `engine` takes it away again.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "tests/nvml"), str(HERE.parent)]

import build
from scenario import Gpu, Holder, Scenario
from stages import nccl, side, speed, wiring

LIBRARY = "libnvidia-ml.so.1"
TARGET = "/usr/lib/x86_64-linux-gnu"
SCHEDULER = "sglang::scheduler"
# Seen on an H200 after a kill: 0.13 to 0.93 s.
FREE_MS = 500


def holding(card: int, cards: int) -> list[str]:
    """Instances whose schedulers hold memory of a card: of the last one the side instances, of each the others."""
    everywhere = ["default", *(name for name, _, _ in nccl.PRESETS), f"card{card}"]
    return everywhere + ([one.name for one in side_instances()] if card == cards - 1 else [])


def side_instances() -> list[side.Instance]:
    return [*wiring.instances(), *speed.everybody()]


def scenario(cards: int, top: str) -> Scenario:
    """What the library shows to a reader to whom the host's control groups lie under ``top``."""
    holders = []
    for card in range(cards):
        for name in holding(card, cards):
            group = f"{top}/system.slice/sglang-{name}.service"
            holders.append(
                Holder(gpu=card, cgroup=group, match=SCHEDULER, free_ms=FREE_MS, id=f"{card}-{name}")
            )
        # Somebody else's process (stages/card.py) and a server that was started by hand over ssh.
        word = "device='cuda:1'" if card else "device='cuda'"
        foreign = f"{top}/system.slice/foreign.service"
        holders.append(Holder(gpu=card, cgroup=foreign, match=word, free_ms=FREE_MS, id=f"g{card}foreign"))
    holders.append(
        Holder(gpu=0, cgroup=f"{top}/system.slice/ssh.service", match=SCHEDULER, free_ms=FREE_MS, id="hand")
    )
    return Scenario(gpus=[Gpu(nvlinks=18 if cards > 1 else 0) for _ in range(cards)], holders=holders)


def exec_in(host: str, command: str) -> str:
    words = [str(ROOT / "tests/hosts/hosts"), "exec", host, "sh", "-c", command]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def outside_path(host: str) -> str:
    """Where this machine sees the host's root control group: that of its pid 1, less `init.scope`."""
    pid = json.loads((ROOT / f".cache/hosts/hosts/{host}/init.json").read_text())["pid"]
    for row in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        path = row.split(":", 2)[2].lstrip("/")
        for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
            if path.endswith("init.scope") and (Path(mount) / path / "cgroup.procs").exists():
                return str(Path(mount) / path).removesuffix("/init.scope")
    raise SystemExit(f"place: the control group of {host} was not found")


def put_server(host: str, wanted: bool) -> None:
    """Have `python -m sglang.launch_server` of the installed release run the double, or not."""
    site = "$(dirname $(readlink -f /opt/sglang/releases/*/bin))/lib/python3.*/site-packages"
    exec_in(host, f"cd {site} && rm -rf aerie_rehearsal.pth server_double")
    if not wanted:
        return
    package = ["tar", "-c", "--exclude=__pycache__", "--owner=root", "--group=root", "server_double"]
    packed = subprocess.run(package, cwd=ROOT / "tests", capture_output=True, check=True).stdout
    words = [str(ROOT / "tests/hosts/hosts"), "exec", host, "sh", "-c", f"cd {site} && tar -x"]
    subprocess.run(words, input=packed, check=True)
    # A .pth line runs at every start of that Python; nothing happens unless it is that module.
    hook = "import sys; 'sglang.launch_server' in sys.orig_argv and __import__('server_double.server').server.main()"
    exec_in(host, f"cd {site} && cat > aerie_rehearsal.pth <<'END'\n{hook}\nEND")
    exec_in(host, f"mkdir -p /srv/double && echo '{json.dumps({'pace': 1})}' > /srv/double/commands.json")


def main() -> None:
    host, state, cards = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    built = build.library()
    library = base64.b64encode(built.read_bytes()).decode()
    text = base64.b64encode(scenario(cards, "/sys/fs/cgroup").text().encode()).decode()
    place = state / "nvml"
    place.mkdir(parents=True, exist_ok=True)
    words = [str(ROOT / "tests/hosts/hosts"), "exec", host, "sh", "-c"]
    subprocess.run(
        [*words, f"base64 -d > {TARGET}/{LIBRARY} && ldconfig"], input=library, text=True, check=True
    )
    exec_in(host, f"mkdir -p /etc/aerie-nvml && echo {text} | base64 -d > /etc/aerie-nvml/scenario")
    put_server(host, sys.argv[4] == "double")
    scenario(cards, outside_path(host)).write(place / "scenario", forget=True)
    print(built.parent)


if __name__ == "__main__":
    main()
