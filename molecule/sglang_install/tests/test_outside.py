"""What the host looks like from outside, over ssh without Ansible."""

from __future__ import annotations

import json

import pytest
from testinfra.host import Host

LINK = "/opt/sglang/releases/0.5.23"


@pytest.fixture
def record(host: Host) -> dict:
    return json.loads(host.file(f"{LINK}/release.json").content_string)


def test_the_link_names_a_complete_environment(host: Host, record: dict) -> None:
    target = host.file(LINK).linked_to
    assert target == record["path"]
    assert target.startswith("/opt/sglang/venvs/0.5.23-")
    assert record["complete"] is True
    assert record["source"] == ("wheelhouse" if host.backend.host.name == "install-wheels" else "index")


def test_it_runs_for_the_service_user(host: Host, record: dict) -> None:
    command = f"runuser -u sglang -- {record['python']} -c 'import sglang, dep_one, dep_extra; print(sglang.__file__)'"
    assert host.check_output(command) == f"{record['package_dir']}/__init__.py"
    assert host.run(f"runuser -u sglang -- touch {record['package_dir']}/x").rc != 0


def test_the_tools_are_there(host: Host) -> None:
    assert host.run("/opt/sglang/tools/bin/python -c 'import nvidia_ml_py'").rc == 0


def test_the_user_is_a_system_account_without_a_shell(host: Host) -> None:
    user = host.user("sglang")
    assert user.uid < 1000
    assert user.group == "sglang"
    assert user.shell == "/usr/sbin/nologin"


def test_byte_code_is_there_and_nothing_of_the_build(host: Host, record: dict) -> None:
    assert host.run(f"ls {record['package_dir']}/__pycache__/launch.*.pyc").rc == 0
    assert not host.file(f"{record['path']}/tmp").exists
    assert host.check_output("find /opt/sglang/venvs -mindepth 1 -maxdepth 1 -type d | wc -l") == "2"


def test_no_secret_of_pip_stayed(host: Host) -> None:
    assert host.run("grep -rqF not-a-real-secret /opt/sglang /root/.ansible /root/.ansible_async").rc != 0
    assert "not-a-real-secret" not in host.check_output("journalctl --no-pager -o cat")
