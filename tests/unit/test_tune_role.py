"""The role's tasks around doubles of the road and of the load: failures, several hosts, the way it leaves a host.

Ansible, the role, the journal and the report are real; the doubles are in tune_road_made.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from tune_road_made import deployed, play, results

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


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A whole tune of two hosts that leaves the best setting in effect; its directory and what it said."""
    place = tmp_path_factory.mktemp("tune")
    done = play(place, "main", {"sglang_deployment_info": INFO}, "-e", "sglang_tune_apply=true")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return place, done.stdout


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
