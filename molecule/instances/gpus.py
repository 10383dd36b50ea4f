"""Print the NVML double's scenario: eight GPUs, four held by each instance's real schedulers."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "nvml"))

from scenario import Gpu, Holder, Scenario

UNITS = {"one": range(4), "two": range(4, 8)}


def holders() -> list[Holder]:
    """A scheduler's memory on each GPU of its instance, free a second and a half after it ended."""
    return [
        Holder(
            gpu=gpu,
            cgroup=f"/sys/fs/cgroup/system.slice/sglang-{name}.service",
            match="sglang::scheduler",
            free_ms=1500,
            id=f"{name}{gpu}",
        )
        for name, gpus in UNITS.items()
        for gpu in gpus
    ]


if __name__ == "__main__":
    print(Scenario(gpus=[Gpu() for _ in range(8)], holders=holders()).text())
