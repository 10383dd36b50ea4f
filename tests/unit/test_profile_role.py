"""The tasks of profile.yml around doubles: what a failure leaves, and what is said without a trace.

Ansible, the tasks, the journal and the report are real; so is `sglang_profile`, which reads made lines of the timers.
The road and the load are those of tune_road_made.py, the trace is a double.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from tune_road_made import deployed, play, results

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


def profile(place: Path, trace: str, *, cycles: int = 30) -> subprocess.CompletedProcess[str]:
    """profile.yml's tasks with so many cycles under load, and one before it."""
    (place / "events").mkdir()
    lines = [cycle(t) for t in (1.0, *[100.0] * cycles)]
    (place / "events" / "cycles.jsonl").write_text("\n".join(lines) + "\n")
    more = {"made_trace": trace, "sglang_tune_trace_steps": 10}
    return play(place, "profile", {"sglang_trace": TRACE}, hosts="gains", **more)


def modes(place: Path) -> list[str]:
    """The modes in which the road was taken."""
    return [one["mode"] for one in deployed(place, "gains")]


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        ("works", "Communication is 20 % of the time in which a kernel runs (10 cycles at batch 1"),
        ("fails", "no share of communication can be claimed: POST /start_profile was answered with HTTP 401"),
    ],
)
def test_the_timers_figures_are_told_whatever_the_trace_says(tmp_path: Path, trace: str, said: str) -> None:
    done = profile(tmp_path, trace)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert modes(tmp_path) == ["profile", "production"]
    found = results(tmp_path)
    assert found["verdict"][0] == "Verify takes 80 % of a 20.00 ms cycle at batch 1."
    assert found["profile"][0]["cycles"] == 30  # the one before the load is left out
    assert said in " ".join(found["verdict"])


def test_a_failure_ends_in_production(tmp_path: Path) -> None:
    done = profile(tmp_path, "works", cycles=3)
    assert done.returncode != 0
    assert "profile-no-cycles" in done.stdout + done.stderr
    assert modes(tmp_path) == ["profile", "production"]
