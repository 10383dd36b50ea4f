"""The role's unit and process, seen over ssh without Ansible."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from testinfra.host import Host

SCENARIO = Path(os.environ["MOLECULE_SCENARIO_DIRECTORY"])
KEY = (Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "api-key").read_text().split()[0]
UNIT = "sglang-second.service"
STATE = "/var/lib/sglang/second"


@pytest.fixture
def settings() -> dict:
    return yaml.safe_load((SCENARIO / "host_vars" / "server.yml").read_text())


@pytest.fixture
def pid(host: Host) -> int:
    return int(host.check_output(f"systemctl show -p MainPID --value {UNIT}"))


def test_values_reach_the_process_unchanged(host: Host, pid: int, settings: dict) -> None:
    environment = dict(
        item.partition("=")[::2]
        for item in host.file(f"/proc/{pid}/environ").content.decode().split("\0")
        if item
    )
    assert environment["TEST_VALUE"] == settings["sglang_server_environment"]["TEST_VALUE"]
    words = host.file(f"/proc/{pid}/cmdline").content.decode().split("\0")
    name = settings["sglang_server_arguments"]["served_model_name"]
    assert words[words.index("--served-model-name") + 1] == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KillMode", "mixed"),
        ("TimeoutStopUSec", "1min 45s"),  # the drain of 30 s and 75 s
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("PrivateDevices", "no"),
        ("MemoryDenyWriteExecute", "no"),
        ("DevicePolicy", "closed"),
        ("LimitNOFILE", "1048576"),
        ("LimitMEMLOCK", "infinity"),
        ("User", "sglang"),
        ("UnitFileState", "enabled"),
        ("SuccessExitStatus", ""),  # 0.5.23 ends a clean stop with 0
        ("DropInPaths", ""),
    ],
)
def test_properties_of_the_unit(host: Host, name: str, value: str) -> None:
    assert host.check_output(f"systemctl show -p {name} --value {UNIT}") == value


def test_pidfd_getfd_is_allowed(host: Host) -> None:
    assert "pidfd_getfd" in host.check_output(f"systemctl show -p SystemCallFilter --value {UNIT}").split()


def test_the_key_works(host: Host) -> None:
    ask = 'python3 -c \'import sys,urllib.request as u;r=u.Request("http://127.0.0.1:31000/v1/models");'
    with_key = (
        ask
        + 'r.add_header("Authorization","Bearer "+sys.stdin.read().strip());print(u.urlopen(r,timeout=30).status)'
    )
    assert host.run(f"printf %s {KEY} | {with_key}'").stdout.strip() == "200"
    assert "401" in host.run(ask + "print(u.urlopen(r,timeout=30).status)'").stderr


def test_the_key_is_in_one_file_that_others_cannot_read(host: Host) -> None:
    found = host.run(
        f"grep -rlF {KEY} /var/lib/sglang /etc /var/cache/sglang /var/log /run/systemd /tmp"
    ).stdout.split()
    assert [path.rpartition("/")[2] for path in found] == ["config.yaml"]
    config = host.file(found[0])
    assert (config.user, config.group, oct(config.mode)) == ("root", "sglang", "0o640")
    assert host.run(f"runuser -u nobody -- cat {found[0]}").rc != 0


def test_the_key_is_not_in_processes_or_the_journal(host: Host) -> None:
    # Bytes: the export holds binary fields. It holds every field, also those that journalctl does not show.
    journal = host.run("journalctl --no-pager -o export").stdout_bytes
    assert UNIT.encode() in journal
    assert KEY.encode() not in journal
    processes = host.check_output(
        "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' || true"
    )
    assert "sglang" in processes
    assert KEY not in processes.replace(f"-rlF {KEY}", "")


def test_the_record_holds_a_hash_of_the_key(host: Host) -> None:
    current = json.loads(host.file(f"{STATE}/current/spec.json").content_string)
    assert len(current["secrets"]["api_key"]) == 64
