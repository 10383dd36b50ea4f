"""The deployed server, seen over ssh without Ansible: what it runs as, and that its acceptance is the predicted one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from testinfra.host import Host

PROJECT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path[:0] = [str(PROJECT / "tests" / "cpu_engine"), str(PROJECT / "module_utils")]

import predict

from aerie.accept.prompts import choose_prompts

UNIT = "sglang-default.service"
STATE = "/var/lib/sglang/default"
STEPS, PROMPTS, NEW_TOKENS = 3, 8, 64  # of inventories/local


@pytest.fixture
def record(host: Host) -> dict:
    return json.loads(host.file(f"{STATE}/state.json").content_string)


def test_the_unit_serves_and_comes_back_after_a_reboot(host: Host) -> None:
    assert host.service(UNIT).is_running
    assert host.service(UNIT).is_enabled


def test_it_answers(host: Host) -> None:
    body = '{"model": "x", "messages": [{"role": "user", "content": "Say goodbye!"}], "max_tokens": 64}'
    command = f"import urllib.request as u;print(u.urlopen(u.Request('http://127.0.0.1:30000/v1/chat/completions',b'{body}',{{'content-type':'application/json'}}),timeout=60).read().decode())"
    answer = json.loads(host.check_output(f'python3 -c "{command.replace(chr(34), chr(92) + chr(34))}"'))
    assert answer["choices"][0]["message"]["content"].strip() == (
        "Thank you for asking; that is everything we remember today."
    )
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_the_recorded_accept_length_is_the_one_that_the_pair_must_give(record: dict) -> None:
    pair = predict.load(PROJECT / ".cache" / "pair" / "pair.json")
    lasts = [predict.last_token(pair, one[-1]["content"]) for one in choose_prompts(PROMPTS).conversations()]
    expected = predict.predict_all(pair, lasts, NEW_TOKENS, STEPS).accept_length
    gates = record["history"][0]["gates"]
    assert gates["accept_length"] == pytest.approx(expected, abs=1e-4)
    low, high = gates["accept_length_interval"]
    assert low <= expected <= high
    assert record["phase"] == "accepted"


def test_the_process_runs_from_its_own_tree_as_the_service_user(host: Host, record: dict) -> None:
    pid = host.check_output(f"systemctl show -p MainPID --value {UNIT}")
    assert host.check_output(f"stat -c %U /proc/{pid}") == "sglang"
    environment = host.file(f"/proc/{pid}/environ").content_string.split("\0")
    assert f"PYTHONPATH={STATE}/deployments/{record['accepted']}/site" in environment
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in environment
    assert host.file(f"{STATE}/current").linked_to == f"{STATE}/deployments/{record['accepted']}"


def test_the_tree_is_the_releases_own_and_not_writable_for_the_server(host: Host) -> None:
    site = f"{STATE}/current/site/sglang"
    package = json.loads(host.file("/opt/sglang/releases/0.5.23/release.json").content_string)["package_dir"]
    assert host.run(f"diff -r -q {site} {package}").rc == 0
    assert host.run(f"runuser -u sglang -- touch {site}/x").rc != 0


def test_the_service_is_well_confined(host: Host) -> None:
    report = json.loads(host.check_output(f"systemd-analyze security --json=short {UNIT}"))
    on = {row["json_field"] for row in report if row["set"]}
    assert {"NoNewPrivileges", "ProtectKernelTunables", "RestrictNamespaces_user"} <= on
    text = host.check_output(f"systemd-analyze security --no-pager {UNIT} | tail -n 1")
    assert float(text.split(": ")[1].split()[0]) <= 3.0
