"""gpu_memory_zero over the double of the driver library: real pynvml, real processes, double GPUs."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpu_memory_zero
import pytest
import yaml
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.gpu import check as gpu_check
from ansible.module_utils.aerie.gpu import driver as gpu_driver
from ansible.module_utils.aerie.gpu.check import Options, Report, check
from ansible.module_utils.aerie.gpu.holders import Identity
from nvml import build
from nvml.scenario import MIB, Gpu, Holder, Mig, Scenario, gpu_uuid, mig_uuid

pytestmark = pytest.mark.nvml

ROOT = Path(__file__).resolve().parents[2]
NO_SUCH_PID = 4_194_303
Put = Callable[..., Scenario]


@pytest.fixture(scope="session", autouse=True)
def _library() -> None:
    build.preload()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AERIE_NVML_SCENARIO", str(tmp_path / "scenario"))
    return tmp_path / "scenario"


@pytest.fixture
def put(path: Path) -> Put:
    """Write the scenario: ``put(gpus=8, holders=[…])``; a number of GPUs means that many like the H200."""

    def write(gpus: int | list[Gpu] = 1, **more: Any) -> Scenario:
        scenario = Scenario(gpus=[Gpu() for _ in range(gpus)] if isinstance(gpus, int) else gpus, **more)
        scenario.write(path)
        return scenario

    return write


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a process that sleeps; it is killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)", *args])
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def run(*, once: bool = False, **options: Any) -> Report:
    params = {name: spec.get("default") for name, spec in gpu_memory_zero.ARGUMENT_SPEC.items()}
    params.update(timeout=0.3, poll_interval=0.02)
    params.update(options)
    return check(Options.from_params(params), once=once, clock=time.monotonic, sleep=time.sleep)


def code(report: Report) -> str:
    assert report.error is not None, report.message
    assert report.error.next
    return report.error.kind.code


def said(report: Report) -> str:
    assert report.error is not None, report.message
    return report.error.message()


def raises(**options: Any) -> AerieError:
    with pytest.raises(AerieError) as caught:
        run(**options)
    assert caught.value.next
    assert caught.value.evidence
    return caught.value


def death_of(path: Path) -> float:
    """When the double saw the (only) process dead, seconds since the epoch."""
    return int(path.with_name("scenario.state").read_text().split()[3]) / 1000


# ---- the double is like the card ----


def test_the_double_reads_like_the_card(put: Put, spawn: Any) -> None:
    """The figures of the captured reading `server-eagle`; see test_gpu_readings."""
    import pynvml

    process = spawn()
    put(holders=[Holder(pid=process.pid, bytes=1702887424, overhead=10092544)])
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    v1 = pynvml.nvmlDeviceGetMemoryInfo(handle)
    v2 = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    (entry,) = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    pynvml.nvmlShutdown()
    assert (v1.total, v1.used, v1.free) == (150754820096, 2357919744, 148396900352)
    assert (v2.total, v2.used, v2.free, v2.reserved) == (150754820096, 1712979968, 148396900352, 644939776)
    assert (entry.pid, entry.usedGpuMemory) == (process.pid, 1702887424)


def test_a_scenario_that_cannot_be_read_is_no_empty_machine(path: Path) -> None:
    path.write_text("gpu uuid=x colour=green\n")
    assert raises(expected_count=0).kind.code == "gpu-nvml-failed"


# ---- free ----


def test_idle_gpus_are_free_whatever_the_reserve(put: Put) -> None:
    put(8)
    report = run(expected_count=8)
    assert report.zero is True
    assert "8 GPUs free" in report.message
    assert "tolerance 0 MiB" in report.message
    result = report.as_result()
    assert [gpu["index"] for gpu in result["gpus"]] == list(range(8))
    assert result["gpus"][0] == {
        "index": 0,
        "mig_index": None,
        "uuid": gpu_uuid(0),
        "name": "NVIDIA H200",
        "state": "free",
        "total_mib": 143771,
        "used_mib": 0,
        "reserved_mib": 616,
        "without_process_mib": 0,
        "processes": 0,
        "problems": [],
    }
    assert result["holders"] == []
    assert result["driver_version"] == "580.159.03"


@pytest.mark.parametrize("listed", [True, False])
def test_frees_late(put: Put, spawn: Any, path: Path, listed: bool) -> None:
    """The killed server's memory is free 0.4 s later; own overhead beyond that moment is under 0.2 s."""
    process = spawn()
    put(holders=[Holder(pid=process.pid, free_ms=400, listed_after_death=listed)])
    assert run(timeout=0).zero is False
    process.kill()
    process.wait()
    report = run(timeout=20, poll_interval=0.05)
    end = time.time()
    assert report.zero is True
    assert report.outcome.waited_s >= 0.35
    assert -0.002 <= end - (death_of(path) + 0.4) < 0.2


def test_frees_while_a_scenario_changes(put: Put, path: Path) -> None:
    put(holders=[Holder(always=True, listed=False)])
    late = subprocess.Popen(
        [sys.executable, "-c", "import sys,time; time.sleep(.3); open(sys.argv[1],'w').write(sys.argv[2])",
         str(path), Scenario(gpus=[Gpu()]).text()]
    )  # fmt: skip
    assert run(timeout=20).zero is True
    assert late.wait() == 0


# ---- held ----


def test_never_frees(put: Put, spawn: Any) -> None:
    process = spawn()
    put(holders=[Holder(pid=process.pid, free_ms=None)])
    run(timeout=0)
    process.kill()
    process.wait()
    report = run(timeout=0.3)
    assert code(report) == "gpu-held"
    assert report.outcome.waited_s == pytest.approx(0.3, abs=0.15)
    assert f"pid {process.pid} (compute), 1624 MiB: no such process is visible here" in said(report)
    assert "the driver is still freeing its memory" in said(report)


@pytest.mark.parametrize(
    ("unit", "zero"), [("sglang-b.service", True), ("sglang-c.service", False), (None, False)]
)
def test_a_neighbour_may_hold_the_card_and_nobody_else(
    put: Put, spawn: Any, monkeypatch: pytest.MonkeyPatch, unit: str | None, zero: bool
) -> None:
    process = spawn()
    put(holders=[Holder(pid=process.pid, bytes=100 * MIB)])
    who = Identity(process.pid, "sglang", "python", "S", None, unit=unit)
    monkeypatch.setattr(gpu_check, "identify", lambda pid: who if pid == process.pid else None)
    report = run(neighbours=["sglang-a*.service", "sglang-b.service"])
    assert report.zero is zero
    assert ("neighbour pid" in report.message) is zero


def test_foreign_holder_is_named_and_left_alone(put: Put, spawn: Any) -> None:
    process = spawn("--api-key", "s3cret")
    put(holders=[Holder(pid=process.pid, bytes=100 * MIB)])
    report = run()
    assert code(report) == "gpu-held"
    (holder,) = report.as_result()["holders"]
    assert holder["pid"] == process.pid
    assert holder["user"] == pwd.getpwuid(os.getuid()).pw_name
    assert holder["mib"] == 100
    assert holder["visible"] is True
    assert holder["since"].endswith("Z")
    assert "time.sleep(120)" in holder["command"]
    assert "s3cret" not in json.dumps(report.as_result()) + said(report)
    for part in (f"pid {process.pid}", "100 MiB", f"user {holder['user']}", holder["since"]):
        assert part in said(report)
    assert process.poll() is None


def test_pid_of_another_namespace_without_attribution(put: Put) -> None:
    put(holders=[Holder(always=True, pid=NO_SUCH_PID, attributed=False)])
    report = run()
    assert code(report) == "gpu-held"
    (holder,) = report.as_result()["holders"]
    assert (holder["visible"], holder["mib"], holder["user"]) == (False, None, None)
    assert "memory not attributed by the driver" in said(report)
    assert "another pid namespace" in said(report)
    assert "outside any container" in said(report)


def test_memory_without_a_process(put: Put) -> None:
    put(holders=[Holder(always=True, listed=False, bytes=512 * MIB)])
    report = run()
    assert code(report) == "gpu-held-no-process"
    assert "512 MiB without a visible process" in said(report)
    for cause in ("another pid namespace", "torn down", "lost context"):
        assert cause in said(report)
    assert report.error is not None
    assert "fuser -v /dev/nvidia0" in report.error.next
    assert report.as_result()["gpus"][0]["without_process_mib"] == 512


def test_tolerance_forgives_memory_without_a_process_and_says_so(put: Put) -> None:
    put(holders=[Holder(always=True, listed=False, bytes=4 * MIB)])
    assert code(run(tolerance_mib=3)) == "gpu-held-no-process"
    report = run(tolerance_mib=4)
    assert report.zero is True
    assert "tolerance 4 MiB" in report.message
    assert "4 MiB forgiven" in report.message


def test_tolerance_does_not_forgive_a_process(put: Put, spawn: Any) -> None:
    put(holders=[Holder(pid=spawn().pid, bytes=MIB)])
    assert code(run(tolerance_mib=1000)) == "gpu-held"


def test_graphics_processes(put: Put, spawn: Any) -> None:
    process = spawn()
    put(holders=[Holder(pid=process.pid, bytes=4 * MIB, kind="graphics")])
    report = run()
    assert report.zero is True
    assert f"graphics pid {process.pid}, 4 MiB, does not count" in report.message
    assert code(run(graphics_processes=True)) == "gpu-held"


def test_mps_client(put: Put, spawn: Any) -> None:
    put(holders=[Holder(pid=spawn().pid, bytes=0, kind="mps")])
    report = run(tolerance_mib=10)
    assert code(report) == "gpu-held"
    assert report.as_result()["holders"][0]["kind"] == "mps"


def test_the_last_of_eight_is_looked_at(put: Put, spawn: Any) -> None:
    put(8, holders=[Holder(gpu=7, pid=spawn().pid)])
    report = run(expected_count=8)
    assert code(report) == "gpu-held"
    assert "1 of 8 GPUs still in use" in said(report)
    assert [gpu["state"] for gpu in report.as_result()["gpus"]] == ["free"] * 7 + ["held"]


def test_two_instances_look_only_at_their_own(put: Put, spawn: Any) -> None:
    put(8, holders=[Holder(gpu=gpu, pid=spawn().pid) for gpu in (4, 5)])
    assert run(gpus=["0", "1", "2", "3"], expected_count=8).zero is True
    report = run(gpus=["4", gpu_uuid(5), "6", "7"], expected_count=8)
    assert code(report) == "gpu-held"
    assert [holder["gpu"] for holder in report.as_result()["holders"]] == [4, 5]


def test_processes_of_a_cgroup(put: Put, spawn: Any, tmp_path: Path) -> None:
    """A server's processes: those that match hold, the others do not; a nested group counts."""
    unit = tmp_path / "sglang-main.service"
    (unit / "worker").mkdir(parents=True)
    rank0, rank1, other = spawn("rank0"), spawn("rank1"), spawn("launcher")
    (unit / "cgroup.procs").write_text(f"{other.pid}\n{rank0.pid}\n")
    (unit / "worker" / "cgroup.procs").write_text(f"{rank1.pid}\n")
    put(2, holders=[Holder(gpu=g, cgroup=str(unit), match=f"rank{g}") for g in (0, 1)])
    report = run()
    assert [(h["gpu"], h["pid"]) for h in report.as_result()["holders"]] == [(0, rank0.pid), (1, rank1.pid)]
    for process in (rank0, rank1):
        process.kill()
        process.wait()
    assert run().zero is True


# ---- MIG ----


def mig_machine(put: Put, holders: list[Holder]) -> None:
    put(
        [Gpu(mig="yes", memory="no-permission"), Gpu()],
        migs=[Mig(0, 0, gi=7), Mig(0, 1, gi=8)],
        holders=holders,
    )


def test_a_gpu_in_mig_mode_stands_for_its_instances(put: Put, spawn: Any) -> None:
    mig_machine(put, [Holder(gpu=0, mig=1, pid=spawn().pid, bytes=64 * MIB)])
    report = run(expected_count=2)
    assert code(report) == "gpu-held"
    rows = [(gpu["index"], gpu["mig_index"], gpu["state"]) for gpu in report.as_result()["gpus"]]
    assert rows == [(0, 0, "free"), (0, 1, "held"), (1, None, "free")]
    assert "GPU 0 MIG 1: pid" in said(report)
    assert report.as_result()["holders"][0]["uuid"] == mig_uuid(0, 1)


@pytest.mark.parametrize("name", [mig_uuid(0, 0), "0:0"])
def test_one_mig_instance(put: Put, spawn: Any, name: str) -> None:
    mig_machine(put, [Holder(gpu=0, mig=1, pid=spawn().pid)])
    report = run(gpus=[name])
    assert report.zero is True
    assert [gpu["uuid"] for gpu in report.as_result()["gpus"]] == [mig_uuid(0, 0)]


def test_mig_mode_without_instances_and_without_a_reading_is_unknown(put: Put) -> None:
    put([Gpu(mig="yes", memory="no-permission")])
    report = run()
    assert code(report) == "gpu-memory-unknown"
    assert "Insufficient Permissions" in said(report)


# ---- unknown, lost, missing ----


def test_unified_memory_is_unknown_and_not_waited_for(put: Put) -> None:
    put([Gpu(name="NVIDIA GB10", memory="not-supported", mig="none"), Gpu()])
    report = run(timeout=30)
    assert code(report) == "gpu-memory-unknown"
    assert report.outcome.waited_s < 5
    first = report.as_result()["gpus"][0]
    assert (first["state"], first["used_mib"]) == ("unknown", None)
    assert "memory info: Not Supported" in said(report)
    assert "cannot be proven free" in said(report)


def test_driver_without_memory_version_2_is_unknown(put: Put) -> None:
    put(memory_v2=False, driver="470.256.02")
    report = run()
    assert code(report) == "gpu-memory-unknown"
    assert "version 1 counts the driver's reserve as used" in said(report)


def test_unreadable_process_list_is_unknown(put: Put) -> None:
    put([Gpu(processes="no-permission")])
    report = run()
    assert code(report) == "gpu-memory-unknown"
    assert "run the task as root" in said(report)


def test_a_passing_error_is_waited_out_and_then_unknown(put: Put) -> None:
    put([Gpu(memory="timeout")])
    report = run(timeout=0.3)
    assert code(report) == "gpu-memory-unknown"
    assert report.outcome.waited_s >= 0.3


@pytest.mark.parametrize("lost", ["yes", "late"])
def test_lost_gpu(put: Put, lost: str) -> None:
    put([Gpu(), Gpu(lost=lost)])
    report = run(expected_count=2, timeout=30)
    assert code(report) == "gpu-lost"
    assert report.outcome.waited_s < 5
    assert "GPU 1" in said(report)
    assert "GPU is lost" in said(report)
    assert run(gpus=["0"]).zero is True


def test_lost_gpu_by_uuid(put: Put) -> None:
    put([Gpu(), Gpu(lost="yes")])
    assert raises(gpus=[gpu_uuid(1)]).kind.code == "gpu-lost"


def test_gpu_lost_while_waiting(put: Put, path: Path, spawn: Any) -> None:
    put(holders=[Holder(pid=spawn().pid)])
    late = subprocess.Popen(
        [sys.executable, "-c", "import sys,time; time.sleep(.3); open(sys.argv[1],'w').write(sys.argv[2])",
         str(path), Scenario(gpus=[Gpu(lost="late")]).text()]
    )  # fmt: skip
    assert code(run(timeout=20)) == "gpu-lost"
    assert late.wait() == 0


def test_one_gpu_missing(put: Put) -> None:
    put(7)
    error = raises(expected_count=8)
    assert error.kind.code == "gpu-count"
    assert "8 GPUs expected, the driver shows 7" in error.message()
    assert sum("the driver shows" in line for line in error.evidence) == 7
    assert any(line.startswith("PCI shows") for line in error.evidence)


def test_more_gpus_than_expected(put: Put) -> None:
    put(2)
    assert raises(expected_count=0).kind.code == "gpu-count"


def test_a_gpu_that_cannot_be_opened(put: Put) -> None:
    put([Gpu(), Gpu(handle="no-permission")])
    error = raises(expected_count=2)
    assert error.kind.code == "gpu-nvml-failed"
    assert "opening GPU 1" in error.what
    assert run(gpus=["0"]).zero is True


# ---- selection ----


def test_a_gpu_named_twice_is_one(put: Put) -> None:
    put(2)
    assert [gpu["index"] for gpu in run(gpus=["1", gpu_uuid(1)]).as_result()["gpus"]] == [1]


@pytest.mark.parametrize("name", ["5", "0:0", "GPU-none", "MIG-none"])
def test_a_gpu_that_is_not_there(put: Put, name: str) -> None:
    put(2)
    error = raises(gpus=[name])
    assert error.kind.code == "gpu-not-found"
    assert any(gpu_uuid(1) in line for line in error.evidence)


@pytest.mark.parametrize("gpus", [[""], ["all"], ["-1"], ["0,1"], []])
def test_a_selection_that_names_nothing(put: Put, gpus: list[str]) -> None:
    put(2)
    assert raises(gpus=gpus).kind.code == "gpu-selection"


@pytest.mark.parametrize(
    ("name", "value"), [("timeout", -1.0), ("poll_interval", 0.0), ("tolerance_mib", -1)]
)
def test_numbers_out_of_range(name: str, value: float) -> None:
    assert raises(**{name: value}).kind.code == "gpu-option"


# ---- no driver ----


def test_none_expected_and_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_driver, "SONAME", "libnvidia-ml-absent.so.1")
    monkeypatch.setitem(sys.modules, "pynvml", None)  # nor is it needed
    report = run(expected_count=0)
    assert (report.zero, report.as_result()["gpus"]) == (True, [])
    assert report.message.startswith("no NVIDIA driver library; none expected")
    for expected in (None, 8):
        assert raises(expected_count=expected).kind.code == "gpu-driver-library-missing"


def test_none_expected_and_driver_not_loaded(put: Put) -> None:
    put(init="driver-not-loaded")
    assert run(expected_count=0).message.startswith("NVIDIA driver not loaded; none expected")
    error = raises()
    assert error.kind.code == "gpu-driver-not-loaded"
    assert any("kernel module:" in line for line in error.evidence)


def test_none_expected_and_none_there(put: Put) -> None:
    put(0)
    assert run(expected_count=0).message == "the driver shows no GPU; none expected"
    assert raises().kind.code == "gpu-count"


def test_none_asked_for(put: Put, spawn: Any) -> None:
    put(holders=[Holder(pid=spawn().pid)])
    assert run(gpus=[], expected_count=0).zero is True


def test_mismatch_after_an_upgrade(put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = tmp_path / "version"
    kernel.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 09:55:41 UTC 2025\nGCC\n"
    )
    monkeypatch.setattr(gpu_driver.kernel_driver_version, "__defaults__", (kernel,))
    put(init="mismatch")
    for expected in (None, 0):
        error = raises(expected_count=expected)
        assert error.kind.code == "gpu-driver-mismatch"
        assert "kernel module: 580.95.05" in error.evidence
        assert any("libnvidia-ml.so.1" in line for line in error.evidence)
        assert "reboot" in error.next


def test_open_kernel_module_version(tmp_path: Path) -> None:
    kernel = tmp_path / "version"
    kernel.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build  (x)\n"
    )
    assert gpu_driver.kernel_driver_version(kernel) == "580.159.03"
    assert gpu_driver.kernel_driver_version(tmp_path / "none") is None


def test_nvml_that_fails_for_another_reason(put: Put) -> None:
    put(init="unknown")
    assert raises(expected_count=0).kind.code == "gpu-nvml-failed"


def test_damaged_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.so").write_text("not a library")
    monkeypatch.setattr(gpu_driver, "SONAME", str(tmp_path / "broken.so"))
    assert raises(expected_count=0).kind.code == "gpu-driver-library-broken"


def test_pynvml_missing(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put(1)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    error = raises()
    assert error.kind.code == "gpu-pynvml-missing"
    assert any(sys.executable in line for line in error.evidence)
    report = run(once=True)
    assert report.zero is None
    assert report.message.startswith("known after install")


# ---- check mode and the module itself ----


def test_check_mode_looks_once_and_does_not_fail_for_use(put: Put, spawn: Any) -> None:
    process = spawn()
    put(holders=[Holder(pid=process.pid)])
    report = run(once=True, timeout=60)
    assert (report.zero, report.error) == (False, None)
    assert report.outcome.waited_s < 5
    assert "would wait up to 60 s" in report.message
    assert f"pid {process.pid}" in report.message


def test_check_mode_fails_for_what_waiting_cannot_mend(put: Put) -> None:
    put([Gpu(lost="late")])
    assert code(run(once=True)) == "gpu-lost"


def test_what_is_returned_is_documented() -> None:
    returned = yaml.safe_load(gpu_memory_zero.RETURN)
    empty = Report("", True).as_result()
    assert set(empty) <= set(returned)


def test_through_ansible(put: Put, spawn: Any, path: Path) -> None:
    """The module as Ansible ships it: its imports are found, its result has the documented shape."""
    process = spawn()
    put(8, holders=[Holder(gpu=7, pid=process.pid)])
    env = {
        **os.environ,
        "LD_LIBRARY_PATH": str(build.library().parent),
        "AERIE_NVML_SCENARIO": str(path),
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    }
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("ansible")), "localhost", "-i", "localhost,", "-c", "local",
            "-e", f"ansible_python_interpreter={sys.executable}",
            "-m", "gpu_memory_zero", "-a", "timeout=0.2 expected_count=8",
        ],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert "gpu-held" in done.stdout
    assert f"pid {process.pid}" in done.stdout
