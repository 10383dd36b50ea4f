"""Checks of GPUs, driver and fabric: tables of readings.

Captured: tests/unit/data/gpu_host/two_h200.json (two H200 of one virtual machine, 2026), read by the module's own
questions. All faults (ECC, row remap, lost, fabric) are written from NVIDIA's documentation; none was seen on a card.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.gpu.driver import Driver, kernel_driver_version
from ansible.module_utils.aerie.gpu_host import nvml as gpu_host_nvml
from ansible.module_utils.aerie.gpu_host.devices import translate
from ansible.module_utils.aerie.gpu_host.driver import check_cuda, check_fabric, check_pin, cuda_major_of
from ansible.module_utils.aerie.gpu_host.facts import (
    CAUTION,
    PROBLEM,
    DriverFacts,
    FabricManager,
    Finding,
    GpuFacts,
    Instance,
    Pair,
    topology_said,
)
from ansible.module_utils.aerie.gpu_host.gpus import check_count, check_health, check_memory, check_model

DATA = Path(__file__).parent / "data" / "gpu_host"
ROOT = Path(__file__).resolve().parents[2]
HASH = "--hash=sha256:" + "0" * 64

H200 = GpuFacts(0, "GPU-a", "NVIDIA H200", "0000:18:00.0", 143771, nvlinks_up=18, fabric="completed")
OTHER = replace(H200, index=1, uuid="GPU-b", pci="0000:19:00.0")
DRIVER = DriverFacts("580.159.04", "13.580.159.04", "13.0", "580.159.04")


def codes(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    return [(one.code, one.severity) for one in findings]


# -- captured ------------------------------------------------------------------------------------------------------


class Captured:
    """nvidia-ml-py as it answered on the captured machine; an answer that was an error is raised again."""

    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_SUCCESS = 0
    NVML_VOLATILE_ECC = 0
    NVML_AGGREGATE_ECC = 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_P2P_STATUS_OK = 0

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def _said(self, answer: Any) -> Any:
        if isinstance(answer, str) and answer.startswith("NVMLError "):
            raise self.NVMLError(int(answer.split()[1].rstrip(":")))
        return answer

    def _gpu(self, handle: int, key: str) -> Any:
        return self._said(self.data["gpus"][handle][key])

    def nvmlSystemGetCudaDriverVersion_v2(self) -> Any:
        return self.data["cuda"]

    def nvmlDeviceGetCount(self) -> int:
        return len(self.data["gpus"])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=self._gpu(handle, "pci"))

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=150754820096)  # samples/nvml.jsonl, the same model

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> Any:
        return self._said(self.data["gpus"][handle]["ecc"][2 * kind + counter])

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> Any:
        return self._said(self.data["gpus"][handle]["links"][link])

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> Any:
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=0))]

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> Any:
        return self._said(self.data["pairs"][0][2])

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, index: int) -> Any:
        return self._said(self.data["pairs"][0][3][index])


for _name, _key in {
    "nvmlDeviceGetUUID": "uuid",
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetCudaComputeCapability": "cc",
    "nvmlDeviceGetMigMode": "mig",
    "nvmlDeviceGetMaxMigDeviceCount": "maxmig",
    "nvmlDeviceGetRemappedRows": "remap",
    "nvmlDeviceGetRetiredPagesPendingStatus": "retired",
}.items():
    setattr(Captured, _name, lambda self, handle, key=_key: self._gpu(handle, key))


@pytest.fixture
def captured() -> Captured:
    return Captured(json.loads((DATA / "two_h200.json").read_text()))


def test_captured_gpus(captured: Captured, tmp_path: Path) -> None:
    """What the captured machine is: healthy, though one GPU has repaired rows and errors in its past."""
    (tmp_path / "0000:00:06.0").mkdir()
    (tmp_path / "0000:00:06.0" / "numa_node").write_text("-1\n")  # as captured
    driver = Driver(captured, captured.data["driver"], captured.data["nvml"])
    gpus = gpu_host_nvml.read_gpus(driver, tmp_path)
    assert [(g.pci, g.memory_mib, g.compute_capability, g.numa) for g in gpus] == [
        ("0000:00:06.0", 143771, "9.0", None),
        ("0000:00:07.0", 143771, "9.0", None),
    ]
    assert [(g.nvlinks_up, g.nvlinks_down, g.mig, g.recovery, g.unreadable) for g in gpus] == 2 * [
        (18, 0, False, None, ())
    ]
    assert (gpus[1].rows_remapped, gpus[1].ecc_uncorrected, gpus[1].ecc_uncorrected_lifetime) == (3, 0, 24)
    assert check_health(gpus) == []
    assert check_model(gpus, "H200") == []
    assert check_count(gpus, [g.pci for g in gpus], 2) == []


def test_captured_topology(captured: Captured) -> None:
    """nvidia-smi topo -m showed NV18 for the pair; below the links the path is PHB."""
    driver = Driver(captured, "", "")
    pairs = gpu_host_nvml.read_pairs(driver, gpu_host_nvml.read_gpus(driver))
    assert pairs == [Pair(0, 1, nvlinks=18, pcie="PHB", p2p=True, same_numa=None)]
    assert "NV18" in captured.data["smi_topo"][1]
    assert topology_said(pairs) == "all pairs NV18"


def test_captured_driver(captured: Captured, tmp_path: Path) -> None:
    facts = gpu_host_nvml.read_driver(Driver(captured, captured.data["driver"], captured.data["nvml"]))
    assert (facts.version, facts.cuda) == ("580.159.04", "13.0")
    (tmp_path / "version").write_text(captured.data["proc_version"])
    assert kernel_driver_version(tmp_path / "version") == "580.159.04"


def test_what_fails_for_another_reason_is_said(captured: Captured) -> None:
    captured.data["gpus"][0]["remap"] = "NVMLError 999: Unknown Error"
    captured.data["gpus"][1]["name"] = "NVMLError 15: GPU is lost"
    first, second = gpu_host_nvml.read_gpus(Driver(captured, "", ""))
    assert first.unreadable == ("remapped rows: error 999",)
    assert codes(check_health([first])) == [("gpu-host-unreadable", CAUTION)]
    assert second.lost


# -- number, model, memory, health ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "pci", "expected", "found"),
    [
        ([H200, OTHER], [H200.pci, OTHER.pci], 2, []),
        ([H200, OTHER], [H200.pci, OTHER.pci], None, []),
        ([], [], 0, []),
        ([H200], [H200.pci, OTHER.pci], 2, [("gpu-count", PROBLEM)]),
        ([H200, OTHER], [], 1, [("gpu-count", PROBLEM)]),
        ([H200], [H200.pci], 0, [("gpu-count", PROBLEM)]),
        ([H200], [H200.pci, OTHER.pci], None, [("gpu-host-pci-count", CAUTION)]),
    ],
)
def test_count(
    gpus: list[GpuFacts], pci: list[str], expected: int | None, found: list[tuple[str, str]]
) -> None:
    assert codes(check_count(gpus, pci, expected)) == found


def test_the_missing_gpu_is_named() -> None:
    (finding,) = check_count([H200], [H200.pci, OTHER.pci], 2)
    assert finding.error.what == "2 GPUs expected, the driver shows 1"
    assert "on PCI and not shown by the driver: 0000:19:00.0" in finding.error.evidence


@pytest.mark.parametrize(
    ("model", "good"),
    [
        (None, True),
        ("H200", True),
        ("nvidia h200", True),
        ("*H200", True),
        ("H100", False),
        ("H200*PCIe", False),
    ],
)
def test_model(model: str | None, good: bool) -> None:
    assert codes(check_model([H200], model)) == ([] if good else [("gpu-host-model", PROBLEM)])


@pytest.mark.parametrize(
    ("memory", "expected", "good"),
    [
        (143771, 143771, True),
        (143771, 140000, True),
        (81559, 140000, False),
        (None, 1, False),
        (None, None, True),
    ],
)
def test_memory(memory: int | None, expected: int | None, good: bool) -> None:
    findings = check_memory([replace(H200, memory_mib=memory)], expected)
    assert codes(findings) == ([] if good else [("gpu-host-memory", PROBLEM)])


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, []),
        ({"rows_remapped": 3, "ecc_uncorrected": 0, "ecc_uncorrected_lifetime": 24}, []),
        ({"remap_pending": True}, [("gpu-host-remap-pending", PROBLEM)]),
        ({"remap_failed": True}, [("gpu-host-remap-failed", PROBLEM)]),
        ({"ecc_uncorrected": 2}, [("gpu-host-ecc", PROBLEM)]),
        ({"recovery": "reboot"}, [("gpu-host-recovery", PROBLEM)]),
        ({"lost": True, "remap_pending": True}, [("gpu-lost", PROBLEM)]),
        ({"nvlinks_down": 2}, [("gpu-host-nvlink-down", CAUTION)]),
        ({"nvlinks_up": 0, "nvlinks_down": 4}, []),
    ],
)
def test_health(change: dict[str, Any], found: list[tuple[str, str]]) -> None:
    assert codes(check_health([replace(H200, **change)])) == found


# -- driver and CUDA -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lock", "major"),
    [
        ("", None),
        (f"nvidia-cuda-runtime==13.0.96 {HASH}", 13),
        (f"nvidia-cuda-runtime-cu12==12.8.90 {HASH}", 12),
        (f"nvidia-nccl-cu12==2.27.5 {HASH}\ntorch==2.9.1 {HASH}", 12),
        (f"torch==2.11.0+cu130 {HASH}", 13),
        (f"torch==2.13.0+cpu {HASH}", None),
        (f"torch==2.13.0 {HASH}", None),
    ],
)
def test_cuda_of_a_lock(lock: str, major: int | None) -> None:
    assert cuda_major_of(lock) == major


def test_cuda_of_the_locks_that_ship() -> None:
    files = ROOT / "roles" / "sglang_install" / "files"
    assert cuda_major_of((files / "sglang-0.5.23-cu13.txt").read_text()) == 13
    assert cuda_major_of((ROOT / "tests" / "cpu_engine" / "lock.txt").read_text()) is None


@pytest.mark.parametrize(
    ("version", "cuda", "needed", "good"),
    [
        ("580.159.04", "13.0", 13, True),
        ("580.65.06", None, 13, True),
        ("575.57.08", "12.9", 13, False),
        ("575.57.08", "12.9", 12, True),
        ("525.60.13", "12.0", 12, True),
        ("520.61.05", "11.8", 12, False),
        ("620.10", "14.0", 14, True),
        ("580.159.04", "13.0", 14, False),
        ("470.1", "11.4", None, True),
    ],
)
def test_driver_and_cuda(version: str, cuda: str | None, needed: int | None, good: bool) -> None:
    findings = check_cuda(DriverFacts(version, "", cuda), needed)
    assert codes(findings) == ([] if good else [("gpu-host-driver-old", PROBLEM)])
    if needed == 13 and not good:
        assert "580 or newer" in findings[0].error.what


def test_pin() -> None:
    assert check_pin(DRIVER, None) == check_pin(DRIVER, "580.159.04") == []
    assert codes(check_pin(DRIVER, "580.200.01")) == [("gpu-host-driver-pin", PROBLEM)]


# -- fabric --------------------------------------------------------------------------------------------------------

SWITCHES = ["/dev/nvidia-nvswitch0", "/dev/nvidia-nvswitch1"]


@pytest.mark.parametrize(
    ("switches", "manager", "gpu", "found"),
    [
        (
            [],
            None,
            {},
            [],
        ),  # the captured virtual machine: links through switches, no switch devices, no manager
        (SWITCHES, FabricManager("active", "580.159.04"), {}, []),
        (SWITCHES, FabricManager("active", None), {}, []),
        (SWITCHES, FabricManager("failed", "580.159.04"), {}, ["gpu-host-fabric-manager"]),
        (SWITCHES, FabricManager("not-found"), {}, ["gpu-host-fabric-manager"]),
        (SWITCHES, None, {}, ["gpu-host-fabric-manager"]),
        (SWITCHES, FabricManager("active", "580.159.03"), {}, ["gpu-host-fabric-version"]),
        (
            SWITCHES,
            FabricManager("failed", "580.1"),
            {"fabric": "in progress"},
            ["gpu-host-fabric-manager", "gpu-host-fabric-version", "gpu-host-fabric-state"],
        ),
        ([], None, {"fabric_error": "Unknown Error"}, ["gpu-host-fabric-state"]),
        ([], None, {"fabric": None}, []),
    ],
)
def test_fabric(
    switches: list[str], manager: FabricManager | None, gpu: dict[str, Any], found: list[str]
) -> None:
    findings = check_fabric("580.159.04", [replace(H200, **gpu)], switches, manager)
    assert codes(findings) == [(code, PROBLEM) for code in found]


# -- what SGLang is given ------------------------------------------------------------------------------------------

ONE = Instance(0, "MIG-1", "NVIDIA H200 MIG 7g.141gb")
TWO = Instance(1, "MIG-2", "NVIDIA H200 MIG 3g.71gb")
WHOLE = GpuFacts(2, "GPU-m", "NVIDIA H200", mig=True, instances=(ONE,))
SPLIT = GpuFacts(
    3, "GPU-s", "NVIDIA H200", mig=True, instances=(Instance(0, "MIG-3", "NVIDIA H200 MIG 3g.71gb"), TWO)
)
ALL = [H200, OTHER, WHOLE, SPLIT]


@pytest.mark.parametrize(
    ("selection", "parallel", "result"),
    [
        (["1", "0"], 1, [1, 0]),
        (["GPU-b", "1"], 1, [1]),
        (["GPU-a", "GPU-b"], 2, [0, 1]),
        (["MIG-1"], 1, [2]),
        (["2:0"], 1, [2]),
        (["2"], 1, [2]),
        (["MIG-2"], 1, "gpu-host-mig-index"),
        (["3"], 1, "gpu-host-mig-index"),
        (["0", "MIG-1"], 2, "gpu-host-mig-tensor-parallel"),
        (None, 8, "gpu-host-mig-tensor-parallel"),
        (["0"], 2, "gpu-host-too-few-gpus"),
        (["GPU-c"], 1, "gpu-not-found"),
        (["7"], 1, "gpu-not-found"),
        (["2:1"], 1, "gpu-not-found"),
        (["first"], 1, "gpu-selection"),
    ],
)
def test_translate(selection: list[str] | None, parallel: int, result: list[int] | str) -> None:
    if isinstance(result, list):
        assert translate(selection, ALL, parallel) == result
        return
    with pytest.raises(AerieError) as caught:
        translate(selection, ALL, parallel)
    assert caught.value.kind.code == result


def test_all_gpus_in_order() -> None:
    assert translate(None, [H200, OTHER], 2) == [0, 1]
