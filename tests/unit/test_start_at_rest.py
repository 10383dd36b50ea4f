"""A start where nothing of the instance runs: it refuses connections itself, and never starts what somebody started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sglang_deployment as module
from ansible.module_utils.aerie import systemd
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance import leftovers, step_switch
from ansible.module_utils.aerie.instance.state import SWITCHED
from ansible.module_utils.aerie.network import traffic_control
from ansible.module_utils.aerie.systemd import UnitState
from test_restore import Made, step_of

PORTS = {"port": 30000, "rendezvous_port": 31000}


class Control:
    """Notes what it is asked instead of asking nft."""

    asked: list[dict[str, Any]]

    def __init__(self, settings: dict[str, Any], *, check: bool) -> None:
        self.asked.append(settings)
        self.actions = ["close 30000 (serving)"]

    def run(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    Control.asked = []
    monkeypatch.setattr(traffic_control, "TrafficControl", Control)
    return Control.asked


def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, active: str, refuse: dict[str, int]) -> Any:
    made, verbs = Made(tmp_path), []
    monkeypatch.setattr(
        systemd, "show", lambda name: UnitState.parse(name, f"ActiveState={active}\nMainPID=7")
    )
    monkeypatch.setattr(systemd, "systemctl", lambda *words, **_: verbs.append(words[0]))
    monkeypatch.setattr(systemd, "forget_failures", lambda _: None)
    monkeypatch.setattr(leftovers, "stale", lambda _: [])
    step = step_of(made, state="started", refuse=refuse, user="sglang")
    step.spec = made.specs["baseline"]
    step.store.unit_path = tmp_path / "a.service"
    step_switch.started(step)
    return step, verbs, made.store.load().phase


@pytest.mark.parametrize("refuse", [PORTS, {}])
def test_it_refuses_connections_where_that_was_not_done_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[dict[str, Any]], refuse: dict[str, int]
) -> None:
    step, verbs, phase = start(tmp_path, monkeypatch, "inactive", refuse)
    place = {"state_dir": str(step.store.root.parent), "instance": "default"}
    assert asked == ([{**place, **PORTS, "state": "refused"}] if refuse else [])
    assert verbs[-1] == "start"
    assert phase == SWITCHED
    assert ("close 30000 (serving)" in step.actions) == bool(refuse)


def test_what_somebody_started_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[dict[str, Any]]
) -> None:
    with pytest.raises(AerieError) as runs:
        start(tmp_path, monkeypatch, "active", PORTS)
    assert runs.value.kind.code == "started-meanwhile"
    assert asked == []


@pytest.mark.parametrize(
    ("state", "code", "told"),
    [
        ("started", "systemctl-failed", {"lease": "t"}),
        ("started", "started-meanwhile", {}),  # nothing of it is ours to stop
        ("stopped", "systemctl-failed", {}),
    ],
)
def test_a_start_that_may_have_begun_is_known_as_this_run_s(
    state: str, code: str, told: dict[str, str]
) -> None:
    assert module.told_of({"state": state, "lease": "t"}, code) == told
