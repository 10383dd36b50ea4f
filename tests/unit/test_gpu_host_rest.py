"""Checks of the host around the GPUs: Xids, NCCL's interfaces and files, required variables, limits; the report.

Captured: the driver's boot line and /etc/nccl.conf of two_h200.json. Xid lines are from NVIDIA's documentation and
public reports (open-gpu-kernel-modules discussions 1151, ml-engineering); none was seen on our own cards.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.gpu import driver as gpu_driver
from ansible.module_utils.aerie.gpu_host import system as gpu_host_system
from ansible.module_utils.aerie.gpu_host.env import check_units, merged, start_checks
from ansible.module_utils.aerie.gpu_host.facts import (
    CAUTION,
    PROBLEM,
    DriverFacts,
    GpuFacts,
    HostFacts,
    Interface,
    UnitEnvironment,
)
from ansible.module_utils.aerie.gpu_host.limits import check_limits
from ansible.module_utils.aerie.gpu_host.nccl import check_conf, check_interfaces, effective, read_conf
from ansible.module_utils.aerie.gpu_host.report import DriverReading, Options, read_driver, report
from ansible.module_utils.aerie.gpu_host.xid import check_xids, parse

CAPTURED = json.loads((Path(__file__).parent / "data" / "gpu_host" / "two_h200.json").read_text())
BOOT = CAPTURED["kernel_log"][0]
OFF = "2026-11-29T10:00:00+0000 gpu1 kernel: NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus."
OFF_BARE = "gpu1 kernel: NVRM: GPU 0000:2b:00.0: GPU has fallen off the bus."
APP = "gpu1 kernel: NVRM: Xid (PCI:0000:65:00): 45, pid=12345, Ch 00000008, engmask 00000101"
REMAP = "gpu1 kernel: NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu"
GSP = "gpu1 kernel: NVRM: Xid (PCI:0000:17:00): 119, pid=77, name=python, Timeout waiting for RPC from GSP!"
_CHANGED = "gpu1 kernel: NVRM: Xid (PCI:0000:17:00): 154, GPU recovery action changed from"
NEED = f"{_CHANGED} 0x0 (None) to 0x2 (Node Reboot Required)"
DONE = f"{_CHANGED} 0x2 (Node Reboot Required) to 0x0 (None)"


@pytest.mark.parametrize(
    ("lines", "fatal"),
    [
        ([], []),
        ([BOOT], []),
        ([BOOT, APP, REMAP], []),
        ([OFF], [79]),
        ([OFF, OFF, OFF], [79]),
        ([OFF_BARE], [0]),
        (["gpu1 kernel: NVRM: GPU at 0000:01:00.0 has fallen off the bus."], [0]),
        ([OFF, BOOT], []),
        ([BOOT, GSP, NEED], [119, 154]),
        ([BOOT, NEED, DONE], []),
        (["kernel: NVRM: Xid (0000:01:00): 62, 0096(1c54) 00000000"], [62]),
    ],
)
def test_xids(lines: list[str], fatal: list[int]) -> None:
    found = check_xids(parse(lines))
    assert len(found) == bool(fatal)
    if fatal:
        assert len(found[0].error.evidence) == len(fatal)
        assert all(f"Xid {number}:" in found[0].error.what for number in fatal if number)


def test_xid_addresses_are_those_of_the_gpus() -> None:
    assert [xid.pci for xid in parse([OFF, OFF_BARE])] == ["0000:2b:00", "0000:2b:00"]


# -- NCCL ----------------------------------------------------------------------------------------------------------

UP = [Interface("lo", True, True), Interface("eth0", True, True), Interface("eth01", True, True)]
MORE = [*UP, Interface("ib0", True, False), Interface("eth9", False, True), Interface("docker0", True, True)]


@pytest.mark.parametrize(
    ("variable", "value", "found"),
    [
        ("NCCL_SOCKET_IFNAME", "", []),
        ("NCCL_SOCKET_IFNAME", "=eth0", []),
        ("NCCL_SOCKET_IFNAME", "=eth0:1234", []),
        ("NCCL_SOCKET_IFNAME", "=eth0,eth01", []),
        ("NCCL_SOCKET_IFNAME", "eth01", []),
        ("NCCL_SOCKET_IFNAME", "eth0", [("gpu-host-interface-prefix", CAUTION)]),
        ("NCCL_SOCKET_IFNAME", "eth", [("gpu-host-interface-prefix", CAUTION)]),
        ("NCCL_SOCKET_IFNAME", "bond0", [("gpu-host-interface-missing", PROBLEM)]),
        ("NCCL_SOCKET_IFNAME", "=eth", [("gpu-host-interface-missing", PROBLEM)]),
        ("NCCL_SOCKET_IFNAME", "=eth0,bond0", [("gpu-host-interface-missing", PROBLEM)]),
        ("NCCL_SOCKET_IFNAME", "=ib0", [("gpu-host-interface-unusable", PROBLEM)]),
        ("NCCL_SOCKET_IFNAME", "eth9", [("gpu-host-interface-unusable", PROBLEM)]),
        ("NCCL_SOCKET_IFNAME", "^docker", []),
        ("NCCL_SOCKET_IFNAME", "^eth,docker", [("gpu-host-interface-unusable", PROBLEM)]),
        ("NCCL_SOCKET_IFNAME", "^=eth0", []),
        ("GLOO_SOCKET_IFNAME", "eth0", []),
        ("GLOO_SOCKET_IFNAME", "eth0,eth01", []),
        ("GLOO_SOCKET_IFNAME", "eth", [("gpu-host-interface-missing", PROBLEM)]),
        ("GLOO_SOCKET_IFNAME", "=eth0", [("gpu-host-interface-missing", PROBLEM)]),
        ("GLOO_SOCKET_IFNAME", "ib0", [("gpu-host-interface-unusable", PROBLEM)]),
    ],
)
def test_interfaces(variable: str, value: str, found: list[tuple[str, str]]) -> None:
    findings = check_interfaces({variable: value}, {}, MORE)
    assert [(one.code, one.severity) for one in findings] == found
    for one in findings:
        assert f"{variable}={value} (environment)" in one.error.evidence


def test_interface_of_a_file_counts_where_the_environment_is_silent() -> None:
    files = {"/etc/nccl.conf": "NCCL_SOCKET_IFNAME==bond0\nGLOO_SOCKET_IFNAME=bond1\n"}
    (finding,) = check_interfaces({}, files, UP)  # Gloo reads no file
    assert finding.code == "gpu-host-interface-missing"
    assert finding.error.next == "ip -br addr; correct NCCL_SOCKET_IFNAME in /etc/nccl.conf"
    assert check_interfaces({"NCCL_SOCKET_IFNAME": "=eth0"}, files, UP) == []


def test_files_in_nccls_order() -> None:
    files = {
        "/var/cache/sglang/.nccl.conf": "NCCL_ALGO=Tree\nNCCL_ALGO=Ring\n",
        "/etc/nccl.conf": "# NCCL_DEBUG=INFO\nNCCL_ALGO=Ring\nNCCL_PROTO=LL\n NCCL_X = 1\nnonsense\n",
    }
    known = effective({"NCCL_PROTO": "Simple"}, files)
    assert known["NCCL_ALGO"] == ("Tree", "/var/cache/sglang/.nccl.conf")
    assert known["NCCL_PROTO"] == ("Simple", "environment")
    assert "NCCL_DEBUG" not in known
    assert read_conf(files["/etc/nccl.conf"])[" NCCL_X "] == " 1"  # NCCL strips nothing
    (finding,) = check_conf({"NCCL_PROTO": "Simple"}, files)
    assert finding.severity == CAUTION
    assert finding.error.evidence == [
        "/var/cache/sglang/.nccl.conf: NCCL_ALGO=Tree takes effect; the inventory does not set it",
        "/etc/nccl.conf: NCCL_ALGO=Ring is overruled by /var/cache/sglang/.nccl.conf: Tree",
        "/etc/nccl.conf: NCCL_PROTO=LL is overruled by the server's environment: Simple",
        "/etc/nccl.conf:  NCCL_X = 1 takes effect; the inventory does not set it",
    ]


def test_captured_nccl_conf() -> None:
    files = {"/etc/nccl.conf": CAPTURED["nccl_conf"]}
    assert read_conf(CAPTURED["nccl_conf"])["NCCL_NVLS_ENABLE"] == "0"
    assert len(check_conf({}, files)[0].error.evidence) == 3
    assert check_conf(read_conf(CAPTURED["nccl_conf"]), files) == []


# -- required variables --------------------------------------------------------------------------------------------


def test_merge_of_environments() -> None:
    assert merged({"A": "host", "B": "host"}, {"B": "own", "C": "own"}, {"D": "must", "A": None}) == {
        "A": "host",
        "B": "own",
        "C": "own",
        "D": "must",
    }
    with pytest.raises(AerieError, match="contradicts"):
        merged({}, {"D": "own"}, {"D": "must"})


@pytest.mark.parametrize("value", ["LL", "", "a b", "50%", "$HOME", "it's", 'say "x"', "a\\b"])
def test_start_checks_hold_whatever_the_value(value: str) -> None:
    """The line's words, unquoted as systemd does, run by the real shell against an environment."""
    line = start_checks({"NCCL_PROTO": value}).removeprefix("ExecStartPre=")
    words = unquoted(line)
    assert words[0] == "/bin/sh"

    def run(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            env={"PATH": os.environ["PATH"], **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    assert run({"NCCL_PROTO": value}).returncode == 0
    wrong = run({"NCCL_PROTO": value + "x"})
    assert wrong.returncode == 78
    assert f"requires the variable NCCL_PROTO={value} (gpu_host_required_env)" in wrong.stderr
    if value:
        assert run({}).returncode == 78


def test_start_check_of_a_variable_with_any_value() -> None:
    words = unquoted(start_checks({"SITE_TOKEN_FILE": None}).removeprefix("ExecStartPre="))
    path = {"PATH": os.environ["PATH"]}
    assert subprocess.run(words, env={**path, "SITE_TOKEN_FILE": ""}, check=False).returncode == 0
    done = subprocess.run(words, env=path, capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert "requires the variable SITE_TOKEN_FILE (gpu_host_required_env)" in done.stderr
    assert start_checks({}) == ""


def unquoted(line: str) -> list[str]:
    """Split an ExecStartPre= value as systemd does for what exec_word writes."""
    words, word, quote, escaped = [], "", False, False
    for sign in line.replace("\\\n", " "):
        if escaped:
            word, escaped = word + {"n": "\n", "t": "\t"}.get(sign, sign), False
        elif sign == "\\":
            escaped = True
        elif sign == '"':
            quote = not quote
            word = word or "\0"
        elif sign == " " and not quote:
            words, word = [*words, word] if word else words, ""
        else:
            word += sign
    words = [*words, word] if word else words
    return [word.replace("\0", "").replace("%%", "%").replace("$$", "$") for word in words]


def test_units_and_processes() -> None:
    required = {"NCCL_PROTO": "LL", "SITE": None}
    good = UnitEnvironment(
        "a.service", {"NCCL_PROTO": "LL", "SITE": "x"}, 7, {"NCCL_PROTO": "LL", "SITE": ""}
    )
    stale = UnitEnvironment("b.service", {"NCCL_PROTO": "LL", "SITE": "x"}, 8, {"NCCL_PROTO": "Simple"})
    assert check_units(required, [good], verify=True) == []
    (finding,) = check_units(required, [good, stale], verify=False)
    assert finding.severity == CAUTION
    assert finding.error.evidence == [
        "b.service, pid 8: NCCL_PROTO is 'Simple', 'LL' is required",
        "b.service, pid 8: SITE is not set",
    ]
    assert check_units(required, [stale], verify=True)[0].severity == PROBLEM


def test_environment_of_a_unit_and_of_a_process(tmp_path: Path) -> None:
    shown = 'A=1 "B=two words" C= "SITE_POOL=blue \\"50%\\" \\$HOME" "D=a\\\\b=c"'  # as systemd 252 shows it
    assert gpu_host_system.environment_of(shown) == {
        "A": "1",
        "B": "two words",
        "C": "",
        "SITE_POOL": 'blue "50%" $HOME',
        "D": "a\\b=c",
    }
    assert gpu_host_system.environment_of("") == {}
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "environ").write_bytes(b"A=1\0B=x=y\0")
    assert gpu_host_system.read_process(9, tmp_path) == {"A": "1", "B": "x=y"}
    assert gpu_host_system.read_process(0, tmp_path) is None
    assert gpu_host_system.read_process(10, tmp_path) is None


# -- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "wanted", "found"),
    [
        (HostFacts(shm_total_mib=262144, shm_free_mib=262144, nr_open=1048576), 1024, []),
        (HostFacts(shm_total_mib=64, shm_free_mib=64), 1024, [("gpu-host-shm", PROBLEM)]),
        (HostFacts(shm_total_mib=64, shm_free_mib=64), 0, []),
        (HostFacts(shm_total_mib=2048, shm_free_mib=10), 1024, [("gpu-host-shm-full", CAUTION)]),
        (HostFacts(nr_open=65536), 1024, [("gpu-host-nr-open", PROBLEM)]),
        (HostFacts(), 1024, []),
    ],
)
def test_limits(host: HostFacts, wanted: int, found: list[tuple[str, str]]) -> None:
    assert [(one.code, one.severity) for one in check_limits(host, wanted)] == found


# -- reading the host ----------------------------------------------------------------------------------------------


def command(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(stat.S_IRWXU)


@pytest.mark.parametrize(
    ("journal", "dmesg", "lines", "source"),
    [
        (f"echo '{OFF}'", "exit 1", (OFF,), "journalctl --dmesg"),
        ("exit 1", "exit 1", (), "journalctl --dmesg"),
        ("echo 'No journal files were opened due to insufficient permissions.' >&2; exit 1",
         f"echo 'x: usb 1-1'; echo '{OFF}'", (OFF,), "dmesg"),
        ("exit 2", "exit 1", None, "not readable"),
    ],
)  # fmt: skip
def test_kernel_log(
    journal: str,
    dmesg: str,
    lines: tuple[str, ...] | None,
    source: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command(tmp_path / "bin", "journalctl", journal)
    command(tmp_path / "bin", "dmesg", dmesg)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert gpu_host_system.read_kernel_log() == (lines, source)


@pytest.mark.parametrize(
    ("show", "version", "result"),
    [
        ("LoadState=loaded\nActiveState=active", "echo 'version is : 580.159.04'", ("active", "580.159.04")),
        ("LoadState=not-found\nActiveState=inactive", "exit 1", ("not-found", None)),
        ("LoadState=loaded\nActiveState=failed", "exit 1", ("failed", None)),
    ],
)  # fmt: skip
def test_fabric_manager(
    show: str,
    version: str,
    result: tuple[str, str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command(tmp_path / "bin", "systemctl", f"printf '{show}\\n'")
    command(tmp_path / "bin", "nv-fabricmanager", version)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    found = gpu_host_system.read_fabric_manager()
    assert (found.active, found.version) == result


def test_interfaces_of_this_machine() -> None:
    found = {one.name: one for one in gpu_host_system.read_interfaces()}
    assert found["lo"] == Interface("lo", True, True)


def test_files_of_the_service_user(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "nccl.conf").write_text("NCCL_DEBUG=WARN\n")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / ".nccl.conf").write_text("NCCL_DEBUG=INFO\n")
    (tmp_path / "other.conf").write_text("")
    read = gpu_host_system.read_nccl_files
    assert list(read("root", None, tmp_path)) == ["/root/.nccl.conf", "/etc/nccl.conf"]
    assert list(read("root", "/other.conf", tmp_path)) == ["/other.conf", "/etc/nccl.conf"]
    assert list(read("no-such-user", None, tmp_path)) == ["/etc/nccl.conf"]


# -- the report ----------------------------------------------------------------------------------------------------

READING = DriverReading(
    DriverFacts("575.57.08", "", "12.9"), (GpuFacts(0, "GPU-a", "NVIDIA L4", memory_mib=23034),)
)


def options(**params: Any) -> Options:
    return Options.from_params(params)


def test_all_problems_in_one_report() -> None:
    """One run tells everything: nobody should need eight runs to find eight problems."""
    asked = options(
        expected_count=8,
        expected_model="H200",
        expected_memory_mib=140000,
        min_shm_mib=1024,
        cuda_major=13,
        environment={"NCCL_SOCKET_IFNAME": "bond0"},
        tensor_parallel_size=8,
    )
    host = HostFacts(shm_total_mib=64, shm_free_mib=64, interfaces=tuple(UP), kernel_log=(OFF,))
    found = report(asked, READING, host)
    assert {one.code for one in found.problems} == {
        "gpu-count", "gpu-host-model", "gpu-host-memory", "gpu-host-shm", "gpu-host-driver-old",
        "gpu-host-interface-missing", "gpu-host-xid", "gpu-host-too-few-gpus",
    }  # fmt: skip
    assert found.message().count("\nNext: ") == len(found.problems)
    for one in found.problems:
        assert one.error.next


def test_tolerated_problems_become_cautions() -> None:
    found = report(options(tolerate=["gpu-host-shm"], min_shm_mib=1024), READING, HostFacts(shm_total_mib=64))
    assert found.problems == []
    assert [one.code for one in found.cautions] == ["gpu-host-shm"]


@pytest.mark.parametrize("code", ["gpu-host-smh", "port-taken", "gpu-host-tolerate", "gpu-selection"])
def test_unknown_codes_are_refused(code: str) -> None:
    with pytest.raises(AerieError) as caught:
        options(tolerate=[code])
    assert caught.value.kind.code == "gpu-host-tolerate"


def test_pin_that_the_role_installs() -> None:
    wrong = report(options(driver_version="580.159.04", install_driver=True), READING, HostFacts())
    assert wrong.install_driver
    right = report(options(driver_version="575.57.08", install_driver=True), READING, HostFacts())
    assert not right.install_driver
    none = report(options(driver_version="575.57.08", install_driver=True), DriverReading(), HostFacts())
    assert none.install_driver
    unknown = report(
        options(driver_version="1", install_driver=True), DriverReading(known=False), HostFacts()
    )
    assert not unknown.install_driver  # without pynvml nobody knows which driver is loaded
    assert not report(options(driver_version="580.159.04"), READING, HostFacts()).install_driver


def test_visible_devices() -> None:
    found = report(options(gpus=["GPU-a"]), READING, HostFacts())
    assert found.visible_devices == "0"
    assert report(options(), READING, HostFacts()).visible_devices is None


@pytest.mark.parametrize(
    ("expected", "pci", "code"),
    [
        (0, [], None),
        (0, ["0000:18:00.0"], None),
        (None, [], None),
        (None, ["0000:18:00.0"], "gpu-driver-library-missing"),
        (8, [], "gpu-driver-library-missing"),
    ],
)
def test_host_without_a_driver(
    expected: int | None, pci: list[str], code: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_driver, "library_missing", lambda: True)
    monkeypatch.setattr(gpu_driver, "pci_gpus", lambda: pci)
    reading = read_driver(options(expected_count=expected), check_mode=False)
    assert [one.code for one in reading.findings] == ([code] if code else [])
    if code is None:
        assert "no NVIDIA driver; none expected" in report(options(), reading, HostFacts()).message()


def test_pynvml_comes_from_the_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fresh host check mode says "known after install"; a run names the interpreter and the tools."""
    monkeypatch.setattr(gpu_driver, "library_missing", lambda: False)
    real = gpu_driver.importlib.import_module

    def without(name: str) -> Any:
        if name == "pynvml":
            raise ImportError("No module named 'pynvml'")
        return real(name)

    monkeypatch.setattr(gpu_driver.importlib, "import_module", without)
    (tmp_path / "lib/python3.11/site-packages").mkdir(parents=True)
    asked = options(tools_dir=str(tmp_path))
    dry = report(asked, read_driver(asked, check_mode=True), HostFacts())
    assert (dry.problems, dry.message()) == ([], "known after install: pynvml is not there yet")
    (problem,) = report(asked, read_driver(asked, check_mode=False), HostFacts()).problems
    assert problem.code == "gpu-pynvml-missing"
    assert f"not in {tmp_path}/lib/python3.11/site-packages either" in problem.error.evidence


def test_filters_for_the_unit() -> None:
    """Through Ansible itself, as the server's template uses them."""
    expression = (
        "{{ {'NCCL_ALGO': 'Ring', 'A': 1} | host_environment({'A': true}, {'SITE': 'blue', 'ANY': none}) | to_json }}"
        "{{ {'SITE': 'blue', 'ANY': none} | required_env_checks }}"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("ansible")), "localhost", "-i", "localhost,", "-c", "local",
            "-m", "ansible.builtin.debug", "-a", json.dumps({"msg": expression}),
        ],
        env={**os.environ, "ANSIBLE_CONFIG": str(root / "ansible.cfg"), "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout[done.stdout.index("{") :])["msg"]
    assert json.loads(said[: said.index("}") + 1]) == {"NCCL_ALGO": "Ring", "A": "true", "SITE": "blue"}
    assert said.count("ExecStartPre=/bin/sh -c ") == 2
