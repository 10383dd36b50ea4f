"""The role's tasks around doubles of the road and of the load: failures, several hosts, the way it leaves a host.

Ansible, the role, the journal and the report are real; `road_double` stands in for the role sglang_server and
`sglang_benchmark` answers from a made server (tune_made.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

ROAD = """
import json
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        asked = dict(self._task.args["asked"])
        with open(task_vars["made_deployed"], "a") as file:
            file.write(json.dumps({"host": task_vars["inventory_hostname"], **asked}, sort_keys=True) + "\\n")
        if asked["environment"].get("BROKEN"):
            error = {"code": "start-timeout"}
            return {"failed": True, "msg": "SGLang did not start [start-timeout]", "error": error}
        digest = str(abs(hash(json.dumps(asked, sort_keys=True))))
        return {"changed": False, "digest": digest, "url": "", "served": {"key_file": "/keys/" + digest}}
"""

LOAD = """
import json, sys
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        sys.path[:0] = [task_vars["made_tests"]]
        import ansible.module_utils
        ansible.module_utils.__path__.append(task_vars["made_utils"])
        from tune_made import World
        steps = int(self._task.args.get("num_steps") or 0)
        assert self._task.args["api_key_file"].startswith("/keys/")
        cycle = lambda k: 0.02 if k == 0 else 0.021 + task_vars["made_draft_ms"] / 1e3 * k
        measured = World((0.75, 0.68, 0.6, 0.55, 0.5), cycle, seed=3, noise=0.001).measure(steps)
        rows = [{**r, "itl": (r["seconds"] - r["ttft"]) / (r["tokens"] - 1)} for r in measured.rows]
        found = {"changed": False, "batches": [{"batch": 1, "rows": rows, "concurrency": 1.0}], "summary": []}
        if steps:
            requests = [{**r, "verify_ct": sum(r["histogram"])} for r in measured.requests]
            found["acceptance"] = {"rows": requests, "accept_length": 2.4, "accept_length_interval": [2.3, 2.5]}
        return found
"""

INFO = """
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        reduces = {"kind": "nccl", "said": "NCCL, though custom all-reduce was on: its set-up failed"}
        digest = task_vars["__sglang_server_plan"]["digest"]
        one = {"instance": "default", "digest": digest, "all_reduce": reduces}
        return {"changed": False, "instances": [{"instance": "other"}, one]}
"""

ROLE = """
- name: The road
  road_double:
    asked:
      mode: "{{ sglang_server_mode }}"
      speculative: "{{ sglang_server_speculative }}"
      arguments: "{{ sglang_server_arguments }}"
      environment: "{{ sglang_server_environment }}"
      floor: "{{ sglang_server_min_accept_length }}"
  register: __sglang_server_plan
"""

PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Tune
      ansible.builtin.import_role: {name: sglang_tune, rolespec_validate: false}
"""


def inventory(place: Path, **more: Any) -> Path:
    """Two hosts that are this machine; drafting is dear on the second one."""
    shared = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "made_deployed": str(place / "deployed.jsonl"),
        "made_tests": str(ROOT / "tests" / "unit"),
        "made_utils": str(ROOT / "module_utils"),
        "sglang_install_result": {"release": "0.5.23", "python": sys.executable},
        "sglang_server_instance": "default",
        "sglang_server_mode": "production",
        "sglang_server_state_dir": str(place / "{{ inventory_hostname }}"),
        "sglang_server_model_path": "/m/target",
        "sglang_server_draft_model_path": "/m/draft",
        "sglang_server_max_running_requests": 48,
        "sglang_server_user": "sglang",
        "sglang_server_gate_chat_template": True,
        "sglang_server_min_accept_length": 1.5,
        "sglang_server_arguments": {},
        "sglang_server_environment": {},
        "sglang_server_speculative": {
            "algorithm": "EAGLE3",
            "num_steps": 1,
            "eagle_topk": 1,
            "num_draft_tokens": 2,
        },
        "sglang_tune_lengths": [1, 2, 5],
        "sglang_tune_reports_dir": str(place / "reports"),
        "sglang_tune_candidates": [
            {"name": "broken", "environment": {"BROKEN": "1"}},
            {"name": "page 64", "arguments": {"page_size": 64}},
        ],
    }
    hosts = {"gains": {"made_draft_ms": 0.5}, "loses": {"made_draft_ms": 60.0}}
    for name in hosts:
        (place / name / "default").mkdir(parents=True)
    path = place / "hosts.json"
    path.write_text(json.dumps({"all": {"vars": {**shared, **more}, "hosts": hosts}}))
    return path


def play(place: Path, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """The role once, on both hosts."""
    role = place / "roles" / "sglang_server" / "tasks"
    role.mkdir(parents=True)
    (role / "main.yml").write_text(ROLE)
    actions = place / "actions"
    actions.mkdir()
    for name, text in (("road_double", ROAD), ("sglang_benchmark", LOAD), ("sglang_deployment_info", INFO)):
        (actions / f"{name}.py").write_text(text)
    (place / "tune.yml").write_text(PLAYBOOK)
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_ROLES_PATH": f"{place / 'roles'}:{ROOT / 'roles'}",
        "ANSIBLE_ACTION_PLUGINS": f"{actions}:{ROOT / 'plugins' / 'action'}",
        "ANSIBLE_NOCOLOR": "1",
        "PYTHONHASHSEED": "0",
    }
    command = ["ansible-playbook", place / "tune.yml", "-i", inventory(place, **more), *words]
    return subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A whole tune of two hosts that leaves the best setting in effect; its directory and what it said."""
    place = tmp_path_factory.mktemp("tune")
    done = play(place, "-e", "sglang_tune_apply=true")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return place, done.stdout


def deployed(place: Path, host: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (place / "deployed.jsonl").read_text().splitlines())
    return [line for line in lines if line["host"] == host]


def results(place: Path, host: str) -> dict[str, Any]:
    (path,) = (place / "reports" / "default").glob(f"*-{host}/results.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("host", ["gains", "loses"])
def test_a_setting_that_fails_is_in_the_table_and_the_sweep_goes_on(
    played: tuple[Path, str], host: str
) -> None:
    settings = results(played[0], host)["settings"]
    status = {one["name"].split(", ")[-1]: one["status"] for one in settings}
    assert status["broken"] == "failed"
    assert status["page 64"] == "measured"
    failed = next(one for one in settings if one["status"] == "failed")
    assert failed["failure"]["code"] == "start-timeout"
    (page,) = (played[0] / "reports" / "default").glob(f"*-{host}/report.html")
    assert "failed: start-timeout" in page.read_text()


@pytest.mark.parametrize("host", ["gains", "loses"])
def test_the_inventorys_own_setting_comes_back_before_the_best(played: tuple[Path, str], host: str) -> None:
    """It is measured again, and is what a failed last step would leave."""
    before, last = deployed(played[0], host)[-2:]
    assert before["speculative"]["num_steps"] == 1
    assert before["floor"] == 1.5
    best = results(played[0], host)
    assert last["speculative"] == best["variables"]["sglang_server_speculative"]


def test_each_host_has_its_own_answer(played: tuple[Path, str]) -> None:
    place, said = played
    assert results(place, "gains")["variables"]["sglang_server_speculative"]["num_steps"] > 1
    assert results(place, "loses")["variables"]["sglang_server_speculative"] == {}
    assert "Speculation should be off" in said
    for host in ("gains", "loses"):
        record = json.loads((place / host / "default" / "benchmark.json").read_text())
        assert record["speedups"]
        assert f"-{host}/" in record["report"]


def test_which_all_reduce_ran_is_part_of_each_result(played: tuple[Path, str]) -> None:
    found = results(played[0], "gains")
    measured = [s for s in found["settings"] if s["status"] == "measured"]
    assert {one["all_reduce"]["kind"] for one in measured} == {"nccl"}
    assert any("All-reduce ran through NCCL, though" in sentence for sentence in found["verdict"])
