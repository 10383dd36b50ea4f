"""The plan and strangers: refused unasked, planned when allowed, carried on after a dead run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance import step_takeover
from ansible.module_utils.aerie.instance.needed import Plan
from ansible.module_utils.aerie.instance.plan import summary
from ansible.module_utils.aerie.instance.step import Step
from ansible.module_utils.aerie.processes import Listener
from ansible.module_utils.aerie.strangers import holders, takeover
from test_plan import ABSENT, RUNNING
from test_stranger import HAND

TAKEN = replace(ABSENT, listener=(Listener("0.0.0.0", 30000, (4711,)),))


@pytest.fixture(autouse=True)
def one_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "gather", lambda found: [HAND] if found else [])


def step(tmp_path: Path, **settings: Any) -> Step:
    given = {"state_dir": str(tmp_path), "instance": "default", "port": 30000, "state": "planned"}
    return Step({**given, **settings}, check=True)


def planned(one: Step, on_ports: Sequence[Any], restart: bool = True) -> Plan:
    plan = Plan("aa", restart=restart)
    step_takeover.plan(one, plan, TAKEN, on_ports)
    return plan


def test_a_port_of_our_own_is_no_question(tmp_path: Path) -> None:
    assert step_takeover.of_ports(step(tmp_path), RUNNING, [30000]) == []


def test_unasked_the_run_stops(tmp_path: Path) -> None:
    with pytest.raises(AerieError) as refused:
        step_takeover.of_ports(step(tmp_path), TAKEN, [30000])
    assert refused.value.kind.code == "port-taken"
    assert "-e sglang_server_takeover=4711:812345" in refused.value.next


def test_allowed_it_is_the_first_line_of_the_plan(tmp_path: Path) -> None:
    one = step(tmp_path, takeover=["4711:812345"])
    plan = planned(one, step_takeover.of_ports(one, TAKEN, [30000]))
    assert plan.takeover[0]["token"] == "4711:812345"
    assert plan.restart
    assert plan.reasons[0].startswith("takes over pid 4711 (root, nohup ")
    assert "takes over" in summary(plan, TAKEN)[0]


def test_a_takeover_of_somebody_who_is_not_in_the_way_is_nothing(tmp_path: Path) -> None:
    plan = planned(step(tmp_path, takeover=["99:1"]), [], restart=False)
    assert not plan.changed


def test_what_a_dead_run_began_is_ended(tmp_path: Path) -> None:
    note = {"pid": 4711, "start_ticks": 812345, "boot_id": takeover.boot_id()}
    (tmp_path / "default").mkdir()
    (tmp_path / "default" / "before.json").write_text(json.dumps([note]))
    one = step(tmp_path)
    plan = planned(one, step_takeover.of_ports(one, TAKEN, [30000]), restart=False)
    assert [each["token"] for each in plan.takeover] == ["4711:812345"]
    assert [each["token"] for each in planned(one, [], restart=False).takeover] == ["4711:812345"]


@pytest.mark.parametrize("look", [{}, {"expected_count": 0}])
def test_without_gpus_none_is_looked_at(
    tmp_path: Path, look: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "on_gpus", lambda *_: pytest.fail("looked"))
    assert step_takeover.of_gpus(step(tmp_path, gpu_look=look), ABSENT) == []


def test_a_holder_of_the_gpus_is_refused_before_anything_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "on_gpus", lambda *_: [(4712, "GPU 0: pid 4712 (compute), 900 MiB")])
    look = {"expected_count": 8}
    with pytest.raises(AerieError) as refused:
        step_takeover.of_gpus(step(tmp_path, gpu_look=look), ABSENT)
    assert refused.value.kind.code == "gpus-taken"
    assert step_takeover.of_gpus(step(tmp_path, gpu_look=look, takeover=[HAND.token]), ABSENT) == [HAND]
