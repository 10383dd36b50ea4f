"""The double of the driver library, call by call through the real pynvml: what the host checks will ask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from nvml import build
from nvml.scenario import MIB, Gpu, Holder, Mig, Scenario, gpu_uuid, mig_uuid

pytestmark = pytest.mark.nvml


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two GPUs: one healthy with NVLink, one with errors; the second in MIG mode."""
    path = tmp_path / "scenario"
    monkeypatch.setenv("AERIE_NVML_SCENARIO", str(path))
    good = Gpu(nvlinks=18, nvlinks_down=1, numa=1, fabric_state=3, serial="123")
    bad = Gpu(mig="yes", ecc_uncorrected=2, remap_uncorrected=1, remap_pending=True)
    holders = [
        Holder(pid=os.getpid(), bytes=MIB, kind="mps"),
        Holder(pid=os.getpid(), bytes=MIB, kind="graphics"),
        Holder(gpu=1, mig=0, pid=os.getpid(), bytes=MIB),
    ]
    Scenario([good, bad], [Mig(1, 0, gi=7, ci=1)], holders).write(path)
    build.preload()
    pynvml.nvmlInit()
    yield path
    pynvml.nvmlShutdown()


def gpu(index: int) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def test_versions(machine: Path) -> None:
    assert pynvml.nvmlSystemGetDriverVersion() == "580.159.03"
    assert pynvml.nvmlSystemGetNVMLVersion() == "13.580.159.03"
    assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == 13000


def test_identity(machine: Path) -> None:
    assert pynvml.nvmlDeviceGetName(gpu(0)) == "NVIDIA H200"
    assert pynvml.nvmlDeviceGetSerial(gpu(0)) == "123"
    assert pynvml.nvmlDeviceGetMinorNumber(gpu(1)) == 1
    assert pynvml.nvmlDeviceGetCudaComputeCapability(gpu(0)) == (9, 0)
    assert pynvml.nvmlDeviceGetNumaNodeId(gpu(0)) == 1
    pci = pynvml.nvmlDeviceGetPciInfo(gpu(1))
    assert (pci.busId, pci.bus) == ("00000000:19:00.0", 0x19)
    found = pynvml.nvmlDeviceGetHandleByPciBusId("00000000:19:00.0")
    assert pynvml.nvmlDeviceGetUUID(found) == gpu_uuid(1)


def test_health(machine: Path) -> None:
    uncorrected, volatile = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    assert pynvml.nvmlDeviceGetEccMode(gpu(0)) == [1, 1]
    assert [pynvml.nvmlDeviceGetTotalEccErrors(gpu(i), uncorrected, volatile) for i in (0, 1)] == [0, 2]
    assert pynvml.nvmlDeviceGetRemappedRows(gpu(0)) == (0, 0, 0, 0)
    assert pynvml.nvmlDeviceGetRemappedRows(gpu(1)) == (0, 1, 1, 0)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu(0))


def test_topology(machine: Path) -> None:
    assert [pynvml.nvmlDeviceGetNvLinkState(gpu(0), link) for link in (0, 1, 17)] == [0, 1, 1]
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetNvLinkState(gpu(1), 0)
    assert pynvml.nvmlDeviceGetTopologyCommonAncestor(gpu(0), gpu(1)) == pynvml.NVML_TOPOLOGY_SYSTEM
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(gpu(0), pynvml.byref(info))
    assert (info.state, info.status) == (pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, 0)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetGpuFabricInfoV(gpu(1), pynvml.byref(info))


def test_process_lists_of_each_kind(machine: Path) -> None:
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(gpu(0)) == []
    for ask in (
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2,
    ):
        assert [entry.pid for entry in ask(gpu(0))] == [os.getpid()]
    assert pynvml.nvmlSystemGetProcessName(os.getpid()).startswith(
        Path("/proc/self/comm").read_text().strip()
    )


def test_mig(machine: Path) -> None:
    assert pynvml.nvmlDeviceGetMigMode(gpu(1)) == [1, 1]
    instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(1), 0)
    assert pynvml.nvmlDeviceGetUUID(instance) == mig_uuid(1, 0)
    assert (pynvml.nvmlDeviceGetGpuInstanceId(instance), pynvml.nvmlDeviceGetComputeInstanceId(instance)) == (
        7,
        1,
    )
    assert pynvml.nvmlDeviceGetMemoryInfo(instance, pynvml.nvmlMemory_v2).used == MIB
    (entry,) = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu(1))
    assert (entry.pid, entry.gpuInstanceId, entry.computeInstanceId) == (os.getpid(), 7, 1)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(1), 1)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(0), 0)


def test_calls_before_init_and_with_a_bad_handle(machine: Path) -> None:
    old = gpu(1)
    Scenario([Gpu()]).write(machine)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetName(old)
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlInit()


def test_p2p_status(machine: Path) -> None:
    """By index as two H200 answered: read 0, write 1, NVLink 2, atomics 3, PCI 4 (5: not supported)."""
    assert [pynvml.nvmlDeviceGetP2PStatus(gpu(0), gpu(1), index) for index in range(5)] == [0, 0, 5, 0, 5]
