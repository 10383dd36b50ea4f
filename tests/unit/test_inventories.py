"""The inventories that ship pass the road's own validation, and a user's inventory beats the project's settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
VALIDATE = """\
- hosts: sglang
  gather_facts: false
  connection: local
  tasks:
    - sglang_validate:
        roles: [gpu_host, sglang_install, sglang_server]
"""


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run one of Ansible's commands in the project, without colour or wrapped lines."""
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "500",
        "NO_COLOR": "1",
    }
    environment |= {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    return subprocess.run(
        [str(word) for word in words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def validate(tmp_path: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    playbook = tmp_path / "validate.yml"
    playbook.write_text(VALIDATE)
    return run("ansible-playbook", playbook, *words)


@pytest.mark.parametrize(
    ("inventory", "warned"),
    [
        ("inventories/local", ["sglang_server_api_key is empty"]),
        ("inventories/gpu", ["sglang_server_api_key is empty", "trust_remote_code runs Python code"]),
    ],
)
def test_shipped_inventories_are_valid(tmp_path: Path, inventory: str, warned: list[str]) -> None:
    done = validate(tmp_path, "-i", inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    for text in warned:
        assert text in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("extra", "code", "text"),
    [
        ({"sglang_server_prot": 1}, "unknown-variable", "did you mean sglang_server_port?"),
        ({"sglang_server_gate_chat_template": "false"}, "wrong-type", "bool is needed"),
        ({"sglang_server_min_accept_length": 3.5}, "bad-accept-floor", "at most 3"),
        (
            {"sglang_server_speculative": {"algorithm": "EAGLE3", "num_steps": 2}},
            "bad-speculation",
            "missing: eagle_topk, num_draft_tokens",
        ),
        ({"sglang_server_arguments": {"api-key": "s"}}, "bad-server-argument", "visible in ps"),
    ],
)
def test_bad_input_is_refused_on_the_controller(
    tmp_path: Path, extra: dict[str, object], code: str, text: str
) -> None:
    done = validate(tmp_path, "-i", "inventories/gpu", "-e", json.dumps(extra))
    assert done.returncode == 2
    assert f"[{code}]" in done.stdout
    assert text in done.stdout
    assert "Next: " in done.stdout


def test_a_users_inventory_wins(tmp_path: Path) -> None:
    """Beside a playbook, group_vars/all beats an inventory's group_vars/all; groups of the inventory beat both."""
    (tmp_path / "hosts.yml").write_text("sglang: {hosts: {mine: {}}}\n")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text("sglang_server_port: 8100\n")
    (tmp_path / "group_vars" / "sglang.yml").write_text("ansible_python_interpreter: /mine/python\n")
    for playbooks in (ROOT, ROOT / "playbooks"):
        done = run(
            "ansible-inventory", "-i", tmp_path / "hosts.yml", "--playbook-dir", playbooks, "--host", "mine"
        )
        told = json.loads(done.stdout)
        assert told["ansible_python_interpreter"] == "/mine/python"
        assert told["sglang_server_port"] == 8100


def test_both_ways_of_calling_load_the_projects_settings(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("sglang: {hosts: {mine: {}}}\n")
    for playbooks in (ROOT, ROOT / "playbooks"):
        done = run(
            "ansible-inventory", "-i", tmp_path / "hosts.yml", "--playbook-dir", playbooks, "--host", "mine"
        )
        assert json.loads(done.stdout)["ansible_python_interpreter"] == "/usr/bin/python3"
