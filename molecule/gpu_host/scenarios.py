"""Print the scenario of the driver's double with this name: scenarios.py NAME."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from nvml.scenario import MIB, Gpu, Holder, Mig, Scenario

DRIVER = "580.159.04"
CGROUP = "/sys/fs/cgroup/system.slice/test-holder.service"


def eight(count: int = 8, **changes: Any) -> list[Gpu]:
    """As many healthy H200 of an NVSwitch machine; changes: of the last one."""
    gpus = [Gpu(nvlinks=18, fabric_state=3) for _ in range(count)]
    for name, value in changes.items():
        setattr(gpus[-1], name, value)
    return gpus


def held(**changes: Any) -> Scenario:
    """GPU 7 held by the processes of the unit test-holder."""
    return Scenario(
        eight(), holders=[Holder(gpu=7, cgroup=CGROUP, overhead=10 * MIB, **changes)], driver=DRIVER
    )


MIG_ON = eight(mig="yes", memory="not-supported")
SCENARIOS = {
    "healthy": Scenario(eight(), driver=DRIVER),
    "upgraded": Scenario(eight(), driver=DRIVER, init="mismatch"),
    "missing": Scenario(eight(7), driver=DRIVER),
    "lost": Scenario(eight(lost="late"), driver=DRIVER),
    "remap": Scenario(eight(remap_pending=True), driver=DRIVER),
    "fabric": Scenario(eight(fabric_state=2), driver=DRIVER),
    "old": Scenario(eight(), driver="575.57.08", cuda=12090),
    "mig": Scenario(MIG_ON, [Mig(7, 0)], driver=DRIVER),
    "held": held(),
    "late": held(free_ms=1500),
    "never": held(free_ms=None, listed_after_death=False),
    # A scope is what a login leaves a process in.
    "by-hand": Scenario(
        eight(),
        holders=[Holder(gpu=7, cgroup=CGROUP.replace("test-holder.service", "test-hand.scope"))],
        driver=DRIVER,
    ),
    "unknown-pid": Scenario(
        eight(), holders=[Holder(gpu=7, pid=999999, always=True, attributed=False)], driver=DRIVER
    ),
    "mig-held": Scenario(MIG_ON, [Mig(7, 0)], [Holder(gpu=7, mig=0, cgroup=CGROUP)], driver=DRIVER),
    "no-memory-info": Scenario(eight(memory="not-supported"), driver=DRIVER),
}

if __name__ == "__main__":
    sys.stdout.write(SCENARIOS[sys.argv[1]].text())
