"""Memory beside a running server that no process explains: the plan refuses before the server is stopped."""

from __future__ import annotations

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.gpu import check as gpu_check
from ansible.module_utils.aerie.gpu.readings import MIB, GpuProcess, GpuReading, Rule, judge
from ansible.module_utils.aerie.gpu.wait import Outcome
from ansible.module_utils.aerie.strangers import holders

OURS = GpuProcess(17, "compute", 1624 * MIB)


@pytest.mark.parametrize(
    ("processes", "used_mib", "foreign"),
    [
        ((OURS,), 1634, False),  # 10 MiB that the driver attributes to nobody, as seen with one server
        ((OURS,), 1624 + 1131, True),  # a process of the machine around the host, as seen on an H200
        ((OURS, GpuProcess(18, "compute", None)), 9999, False),  # not attributed: nothing can be said
        ((), 1131, False),  # nobody serves there: the wait for free GPUs says it
    ],
)
def test_unexplained_memory_is_somebodys(
    processes: tuple[GpuProcess, ...], used_mib: int, foreign: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = GpuReading(0, "GPU-1", "NVIDIA H200", used=used_mib * MIB, processes=processes)
    report = gpu_check.Report("", False, Outcome((judge(reading, Rule()),), 0.0))
    monkeypatch.setattr(gpu_check, "check", lambda *_, **__: report)
    monkeypatch.setattr(holders, "LOOK_AGAIN_S", 0.0)
    found = holders.on_gpus({"gpus": []}, [17, 18])
    assert [pid for pid, _ in found] == [0] * foreign
    if foreign:
        with pytest.raises(AerieError) as refused:
            holders.approve_gpus(found, [])
        assert "1131 MiB without a visible process" in str(refused.value.as_result())
        assert "fuser" in str(refused.value.as_result())
