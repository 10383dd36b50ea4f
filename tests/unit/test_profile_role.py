"""The tasks of profile.yml around doubles: what a failure leaves, and what is said without a trace.

Ansible, the tasks, the journal and the report are real; so is `sglang_profile`, which reads made lines of the timers.
The road and the load are those of test_tune_role, the trace is a double.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_tune_role import BIN, LOAD, ROAD, ROLE, ROOT, inventory

PLAYBOOK = """
- hosts: gains
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: sglang_tune, tasks_from: profile, rolespec_validate: false}
"""

TRACE = """
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        if task_vars["made_trace"] == "fails":
            error = {"code": "trace-refused", "what": "POST /start_profile was answered with HTTP 401"}
            return {"failed": True, "msg": "refused [trace-refused]", "error": error}
        assert self._task.args["steps"] == 10 and self._task.args["batch"] == 1
        rank = {"rank": "TP-0", "share": 0.2, "alone_ms": 2.0, "busy_ms": 10.0, "names": []}
        trace = {"share": 0.2, "share_low": 0.2, "share_high": 0.2, "share_beside": 0.0, "ranks": [rank]}
        return {"changed": False, "trace": {**trace, "steps": 10, "batch": 1, "why": ""}}
"""


def cycle(t: float) -> str:
    parts = {"draft_ms": 2.0, "verify_ms": 16.0, "extend_ms": 1.0, "cycle_ms": 20.0}
    return json.dumps(
        {"v": 1, "t": t, "batch": 1, **parts, "accepted": 3, "clock": "cuda_event", "worker": "v2"}
    )


def play(place: Path, trace: str, *, cycles: int = 30) -> tuple[int, str, dict[str, Any], list[str]]:
    """Return code, output, results and the modes in which the road was taken."""
    (place / "events").mkdir()
    lines = [cycle(t) for t in (1.0, *[100.0] * cycles)]
    (place / "events" / "cycles.jsonl").write_text("\n".join(lines) + "\n")
    role = place / "roles" / "sglang_server" / "tasks"
    role.mkdir(parents=True)
    (role / "main.yml").write_text(ROLE)
    actions = place / "actions"
    actions.mkdir()
    road = ROAD.replace('"url": "", "served": {', f'"url": "", "served": {{"events": "{place}/events", ')
    load = LOAD.replace('"changed": False,', '"changed": False, "load_began": 50.0,')
    assert road != ROAD
    assert load != LOAD
    for name, text in (("road_double", road), ("sglang_benchmark", load), ("sglang_trace", TRACE)):
        (actions / f"{name}.py").write_text(text)
    (place / "profile.yml").write_text(PLAYBOOK)
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_ROLES_PATH": f"{place / 'roles'}:{ROOT / 'roles'}",
        "ANSIBLE_ACTION_PLUGINS": f"{actions}:{ROOT / 'plugins' / 'action'}",
        "ANSIBLE_NOCOLOR": "1",
    }
    more = {"made_trace": trace, "sglang_tune_trace_steps": 10}
    words = ["ansible-playbook", place / "profile.yml", "-i", inventory(place, **more)]
    done = subprocess.run(
        [str(word) for word in words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    found = [json.loads(path.read_text()) for path in place.glob("reports/*/*/results.json")]
    modes = [json.loads(line)["mode"] for line in (place / "deployed.jsonl").read_text().splitlines()]
    return done.returncode, done.stdout + done.stderr, found[0] if found else {}, modes


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        ("works", "Communication is 20 % of the time in which a kernel runs (10 cycles at batch 1"),
        ("fails", "no share of communication can be claimed: POST /start_profile was answered with HTTP 401"),
    ],
)
def test_the_timers_figures_are_told_whatever_the_trace_says(tmp_path: Path, trace: str, said: str) -> None:
    rc, output, results, modes = play(tmp_path, trace)
    assert rc == 0, output[-3000:]
    assert modes == ["profile", "production"]
    assert results["verdict"][0] == "Verify takes 80 % of a 20.00 ms cycle at batch 1."
    assert results["profile"][0]["cycles"] == 30  # the one before the load is left out
    assert said in " ".join(results["verdict"])


def test_a_failure_ends_in_production(tmp_path: Path) -> None:
    rc, output, _, modes = play(tmp_path, "works", cycles=3)
    assert rc != 0
    assert "profile-no-cycles" in output
    assert modes == ["profile", "production"]
