"""Somebody who holds GPU memory, in the host and outside it.

In a rehearsal the card is the driver's double (tests/nvml): a process of the host that is named in its scenario holds
nothing but counts as a holder (doubles/place.py), and an outsider is a line of the scenario.
"""

from __future__ import annotations

import os
import subprocess
import sys

from record import REHEARSAL, ssh

# A Python of the host that has NVML's bindings before anything is installed, and torch on a GPU machine.
PYTHON = os.environ.get("AERIE_GPU_PYTHON", "/opt/torch/.venv/bin/python3")
MIB = 512
SCENARIO = "/etc/aerie-nvml/scenario"
# Takes memory and says so; ends by itself.
HOLD = (
    "import torch, time, sys; x = torch.empty({mib} << 20, dtype=torch.uint8, device='{device}'); x.fill_(1); "
    "torch.cuda.synchronize(); print('holding', flush=True); time.sleep({seconds})"
)
# The device stands in its command line, which is what the double goes by.
PRETEND = "import time; device='{device}'; print('holding', flush=True); time.sleep({seconds})"


def code(device: str, seconds: int) -> str:
    """Python that holds memory of one card for a while."""
    return (PRETEND if REHEARSAL else HOLD).format(mib=MIB, device=device, seconds=seconds)


class Outsider:
    """A process of the machine, outside the host's namespaces, that holds GPU memory."""

    def __enter__(self) -> Outsider:
        if REHEARSAL:
            line = "holder id=outsider gpu=0 source=always pid=999999 bytes=536870912 listed=no attributed=no"
            ssh(f"echo '{line}' >> {SCENARIO}")
            self.said = "holding"
            return self
        words = [sys.executable, "-c", code("cuda", 120)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().strip()
        return self

    def __exit__(self, *exception: object) -> None:
        if REHEARSAL:
            ssh(f"sed -i /id=outsider/d {SCENARIO}")
            return
        self.process.kill()
        self.process.wait()


def hold_in_host(device: str = "cuda", seconds: int = 120) -> str:
    """Another user's process in the host, in a unit of its own, that holds GPU memory; ends with `up` when it does."""
    return ssh(
        "systemctl reset-failed foreign 2>/dev/null; "
        "systemd-run --quiet --unit=foreign -p User=nobody -p StandardOutput=journal "
        f'-p Environment=LD_LIBRARY_PATH=/usr/local/nvidia/lib64 {PYTHON} -c "{code(device, seconds)}"; '
        "for i in $(seq 150); do journalctl -u foreign -o cat --since=-60s | grep -q holding && echo up && exit; "
        "sleep 0.2; done; journalctl -u foreign -o cat | tail -5",
        45,
    )


def let_go() -> str:
    return ssh("systemctl stop foreign; systemctl reset-failed foreign 2>/dev/null; echo stopped", 20)
