"""The module gpu_host_check as a program, over the double of the driver library: what is real and what is not stands
in tests/nvml/README.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from nvml import build
from nvml.scenario import Gpu, Mig, Scenario, gpu_uuid, mig_uuid

pytestmark = pytest.mark.nvml

ROOT = Path(__file__).resolve().parents[2]
# Ansible makes its own module importable on a host; here this line does.
START = (
    f"import sys, ansible.module_utils as m; m.__path__.append({str(ROOT / 'module_utils')!r});"
    f" sys.path.insert(0, {str(ROOT / 'library')!r}); import gpu_host_check as it; it.main()"
)
Run = Callable[..., dict[str, Any]]
EIGHT = [Gpu(nvlinks=18, fabric_state=3) for _ in range(8)]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Write a scenario, run the module with options under a Python without pynvml of its own, return its answer."""
    tools = tmp_path / "tools/lib/python3.11/site-packages"
    tools.mkdir(parents=True)
    (tools / "pynvml.py").write_bytes(Path(pynvml.__file__).read_bytes())

    def call(scenario: Scenario, **params: Any) -> dict[str, Any]:
        path = scenario.write(tmp_path / "scenario")
        options = {"min_shm_mib": 0, "tools_dir": str(tmp_path / "tools"), **params}
        text = json.dumps({"ANSIBLE_MODULE_ARGS": {"_ansible_remote_tmp": str(tmp_path), **options}})
        done = subprocess.run(
            [sys.executable, "-c", START, "--profile", "legacy"],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(build.library().parent),
                "AERIE_NVML_SCENARIO": str(path),
            },
        )
        assert done.stdout, done.stderr
        return dict(json.loads(done.stdout))

    return call


def codes(answer: dict[str, Any], key: str = "problems") -> list[str]:
    return [one["code"] for one in answer[key]]


def test_eight_healthy_gpus(run: Run) -> None:
    answer = run(Scenario(EIGHT), expected_count=8, expected_model="H200", cuda_major=13)
    assert not answer.get("failed"), answer["msg"]
    assert answer["msg"] == "8 GPUs NVIDIA H200; driver 580.159.03 (CUDA 13.0); all pairs NV18"
    assert len(answer["gpus"]) == 8
    assert len(answer["topology"]) == 28
    assert answer["gpus"][7]["uuid"] == gpu_uuid(7)
    assert answer["driver"]["library"].endswith("libnvidia-ml.so.1")
    assert answer["cautions"] == []


def test_pairs_without_nvlink(run: Run) -> None:
    answer = run(Scenario([Gpu(), Gpu()], topology=40))
    assert [pair["path"] for pair in answer["topology"]] == ["NODE"]
    assert answer["topology"][0]["p2p"] is True


@pytest.mark.parametrize(
    ("scenario", "params", "code", "words"),
    [
        (Scenario(EIGHT[:7]), {"expected_count": 8}, "gpu-count", "8 GPUs expected, the driver shows 7"),
        (Scenario([Gpu(), Gpu(lost="yes")]), {}, "gpu-lost", "The driver has lost GPU 1"),
        (Scenario([Gpu(), Gpu(lost="late")]), {}, "gpu-lost", "The driver has lost GPU 1"),
        (Scenario([Gpu(ecc_uncorrected=2)]), {}, "gpu-host-ecc", "had 2 uncorrectable"),
        (Scenario([Gpu(remap_pending=True)]), {}, "gpu-host-remap-pending", "waits for a reset"),
        (Scenario([Gpu(remap_failed=True)]), {}, "gpu-host-remap-failed", "could not be replaced"),
        (Scenario([Gpu(fabric_state=2)]), {}, "gpu-host-fabric-state", "1 of 1 GPUs are not part"),
        (
            Scenario([Gpu(fabric_state=3, fabric_status="timeout")]),
            {},
            "gpu-host-fabric-state",
            "1 of 1 GPUs are not part",
        ),
        (Scenario([Gpu()], init="mismatch"), {}, "gpu-driver-mismatch", "Next: reboot the host"),
        (Scenario([Gpu()], init="driver-not-loaded"), {}, "gpu-driver-not-loaded", "modprobe nvidia"),
        (Scenario([Gpu()], driver="575.57.08", cuda=12090), {"cuda_major": 13}, "gpu-host-driver-old", "580 or newer"),
        (Scenario([Gpu()]), {"driver_version": "580.200.01"}, "gpu-host-driver-pin", "580.200.01 is wanted"),
        (Scenario([Gpu()]), {"environment": {"NCCL_SOCKET_IFNAME": "=none9"}}, "gpu-host-interface-missing", "none9"),
        (
            Scenario([Gpu(mig="yes"), Gpu()], [Mig(0, 0)]),
            {"tensor_parallel_size": 2},
            "gpu-host-mig-tensor-parallel",
            "MIG mode",
        ),
    ],
)  # fmt: skip
def test_each_message(run: Run, scenario: Scenario, params: dict[str, Any], code: str, words: str) -> None:
    answer = run(scenario, **params)
    assert answer["failed"]
    assert codes(answer) == [code]
    assert answer["error"]["code"] == code
    assert words in answer["msg"]
    assert f"[{code}]" in answer["msg"]
    assert "\nNext: " in answer["msg"]


def test_mig_instances_and_uuids_are_readable(run: Run) -> None:
    scenario = Scenario([Gpu(mig="yes", memory="not-supported"), Gpu()], [Mig(0, 0), Mig(0, 2)])
    answer = run(scenario, gpus=[gpu_uuid(1)])
    assert answer["cuda_visible_devices"] == "1"
    assert [one["index"] for one in answer["gpus"][0]["instances"]] == [0, 2]
    assert answer["gpus"][0]["instances"][1]["uuid"] == mig_uuid(0, 2)
    assert answer["gpus"][0]["memory_mib"] is None


def test_links_that_are_down_are_only_said(run: Run) -> None:
    answer = run(Scenario([Gpu(nvlinks=18, nvlinks_down=2)]))
    assert codes(answer, "cautions") == ["gpu-host-nvlink-down"]
    assert "2 of 18 NVLinks" in str(answer["warnings"][0])


def test_a_pin_that_the_caller_installs(run: Run) -> None:
    answer = run(Scenario([Gpu()]), driver_version="580.200.01", install_driver=True)
    assert not answer.get("failed")
    assert answer["install_driver"]


def test_a_tolerated_problem(run: Run) -> None:
    answer = run(Scenario([Gpu(ecc_uncorrected=1)]), tolerate=["gpu-host-ecc"])
    assert not answer.get("failed")
    assert codes(answer, "cautions") == ["gpu-host-ecc"]


def test_time_of_one_look(run: Run) -> None:
    """The whole program over eight GPUs; Python's and Ansible's own start is most of it."""
    run(Scenario(EIGHT))
    begin = time.monotonic()
    run(Scenario(EIGHT))
    assert time.monotonic() - begin < 10
