"""The role sglang_tune on two hosts of this machine, around doubles of the road and of the load.

`road_double` stands in for the role sglang_server, and `sglang_benchmark` answers from a made server (tune_made.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

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
        served = {"key_file": "/keys/" + digest, "events": task_vars["made_events"]}
        return {"changed": False, "digest": digest, "url": "", "served": served}
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
        batches = [{"batch": 1, "rows": rows, "concurrency": 1.0}]
        found = {"changed": False, "load_began": 50.0, "batches": batches, "summary": []}
        if steps:
            requests = [{**r, "verify_ct": sum(r["histogram"])} for r in measured.requests]
            found["acceptance"] = {"rows": requests, "accept_length": 2.4, "accept_length_interval": [2.3, 2.5]}
        return found
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
- hosts: {hosts}
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {{name: sglang_tune, tasks_from: {entry}, rolespec_validate: false}}
"""


def inventory(place: Path, **more: Any) -> Path:
    """Two hosts that are this machine; drafting is dear on the second one."""
    shared = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "made_deployed": str(place / "deployed.jsonl"),
        "made_events": str(place / "events"),
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


def play(
    place: Path, entry: str, actions: dict[str, str], *words: str, hosts: str = "all", **more: Any
) -> subprocess.CompletedProcess[str]:
    """That entry point of the role once; ``actions``: further doubles by name, ``more``: the inventory's variables."""
    role = place / "roles" / "sglang_server" / "tasks"
    role.mkdir(parents=True)
    (role / "main.yml").write_text(ROLE)
    plugins = place / "actions"
    plugins.mkdir()
    for name, text in {"road_double": ROAD, "sglang_benchmark": LOAD, **actions}.items():
        (plugins / f"{name}.py").write_text(text)
    playbook = place / "play.yml"
    playbook.write_text(PLAYBOOK.format(hosts=hosts, entry=entry))
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_ROLES_PATH": f"{place / 'roles'}:{ROOT / 'roles'}",
        "ANSIBLE_ACTION_PLUGINS": f"{plugins}:{ROOT / 'plugins' / 'action'}",
        "ANSIBLE_NOCOLOR": "1",
        "PYTHONHASHSEED": "0",
    }
    command = Path(sys.executable).parent / "ansible-playbook"
    return subprocess.run(
        [str(word) for word in (command, playbook, "-i", inventory(place, **more), *words)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def deployed(place: Path, host: str) -> list[dict[str, Any]]:
    """What the road was asked for on that host, in order."""
    lines = map(json.loads, (place / "deployed.jsonl").read_text().splitlines())
    return [line for line in lines if line["host"] == host]


def results(place: Path, host: str = "") -> dict[str, Any]:
    """What the only report holds, or that host's where each has its own."""
    (path,) = (place / "reports" / "default").glob(f"*{host}/results.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found
