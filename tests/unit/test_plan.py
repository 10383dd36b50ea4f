"""The plan: what a run would do, for each way in which a host can differ from what is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible.module_utils.aerie.instance.needed import Plan
from ansible.module_utils.aerie.instance.plan import duration, make_plan, measure_again, summary
from ansible.module_utils.aerie.instance.reality import Reality
from ansible.module_utils.aerie.instance.spec import Spec, resolved
from ansible.module_utils.aerie.instance.state import ACCEPTED, STOPPED, SWITCHED, InstanceState
from ansible.module_utils.aerie.processes import Listener, Process
from ansible.module_utils.aerie.systemd import UnitState
from spec_made import SETTINGS, spec

DIRECTORY = "/var/lib/sglang/default/deployments/"
WANTED = spec()
RECORD = WANTED.as_dict()
LIVE = resolved(RECORD, DIRECTORY + WANTED.digest)

UNIT = UnitState.parse(
    "sglang-default.service",
    "LoadState=loaded\nActiveState=active\nSubState=running\nMainPID=100\nUnitFileState=enabled\n"
    "ControlGroup=/system.slice/sglang-default.service\nNRestarts=0\nResult=success\n",
)
DOWN = replace(UNIT, active="inactive", sub="dead", main_pid=0)
RUNNING = Reality(
    unit=UNIT,
    unit_text=LIVE["unit"],
    process=Process(100, 5000, "sglang", LIVE["command"], "/system.slice/sglang-default.service"),
    environment=LIVE["environment"],
    running=WANTED.digest,
    listener=(Listener("127.0.0.1", 30000, (100,)),),
    members=(100, 101),
    health="ok",
    age_s=3600.0,
)
ABSENT = replace(RUNNING, unit=DOWN, unit_text=None, process=None, environment=None, running="", listener=(),
                 members=(), health="no process", age_s=0.0)  # fmt: skip
DONE = InstanceState(phase=ACCEPTED, accepted=WANTED.digest)


def plan(
    seen: Reality = RUNNING,
    state: InstanceState = DONE,
    recorded: dict[str, Any] | None = RECORD,
    built: bool = True,
) -> Plan:
    return make_plan(
        WANTED.digest,
        RECORD,
        recorded,
        state,
        seen,
        built=built,
        deployment=DIRECTORY + WANTED.digest,
        start_timeout=600,
    )


def test_nothing_to_do_says_so_and_that_nothing_restarts() -> None:
    result = plan()
    assert not result.changed
    assert result.reasons == []
    (line,) = summary(result, RUNNING)
    assert line.startswith("nothing to do: sglang-default.service runs")
    assert line.endswith("up 01:00:00); not restarted")


def test_first_deployment() -> None:
    result = plan(ABSENT, InstanceState(), None, built=False)
    assert (result.build, result.restart, result.gates) == (True, True, True)
    assert summary(result, ABSENT) == [
        "not running; first deployment of this instance; start needed",
        "steps: build, start, gates",
    ]


def test_of_a_first_deployment_the_layer_ids_that_are_written_are_said() -> None:
    draft = {"path": "/m/d", "config_sha256": "1", "layer_ids": [3, 31, 59], "config_layer_ids": [2, 30, 58]}
    wanted = spec(models={"draft": draft})
    result = make_plan(
        wanted.digest, wanted.as_dict(), None, InstanceState(), ABSENT, built=False, deployment="/d", start_timeout=1
    )  # fmt: skip
    assert result.reasons[1:] == [
        "first deployment of this instance",
        "draft layer ids [2,30,58] -> [3,31,59]",
    ]


OTHER_ENVIRONMENT = {**LIVE["environment"], "NCCL_ALGO": "Tree"}


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (
            replace(RUNNING, process=Process(100, 1, "sglang", ["/other"], "")),
            "other arguments than recorded",
        ),
        (replace(RUNNING, environment=OTHER_ENVIRONMENT), "another value of NCCL_ALGO"),
        (replace(RUNNING, unit_text="edited"), "was edited"),
        (replace(RUNNING, unit=replace(UNIT, drop_ins=("/etc/x.conf",))), "drop-ins: /etc/x.conf"),
        (replace(RUNNING, health="HTTP 500"), "/health does not answer: HTTP 500"),
        (replace(RUNNING, health="timed out"), "/health does not answer: timed out"),
        (replace(RUNNING, health="HTTP 503", age_s=700.0), "/health does not answer: HTTP 503"),
        (replace(ABSENT, unit=replace(DOWN, active="failed")), "the unit has failed"),
        (replace(ABSENT, unit=replace(DOWN, active="activating")), "restart loop"),
        (ABSENT, "not running"),
    ],
)
def test_drift_and_failures_restart_with_their_reason(seen: Reality, reason: str) -> None:
    result = plan(seen)
    assert result.restart
    assert result.gates
    assert reason in " / ".join(result.reasons)


STOPS = spec(unit_template=SETTINGS["unit_template"] + "TimeoutStopSec=195\n")
STOPS_LATER = spec(unit_template=SETTINGS["unit_template"] + "TimeoutStopSec=675\n")


def unit_plan(recorded: Spec, wanted: Spec, on_disk: Spec, **of_unit: Any) -> Plan:
    """The plan for a server that runs, by what the record, the settings and the unit file say."""
    text = resolved(on_disk.as_dict(), DIRECTORY + wanted.digest)["unit"]
    seen = replace(RUNNING, unit_text=text, running=wanted.digest, unit=replace(UNIT, **of_unit))
    return make_plan(
        wanted.digest, wanted.as_dict(), recorded.as_dict(), InstanceState(phase=ACCEPTED, accepted=wanted.digest),
        seen, built=True, deployment=DIRECTORY + wanted.digest, start_timeout=600,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("recorded", "on_disk", "of_unit", "reason"),
    [
        (STOPS, STOPS, {}, "unit file: without TimeoutStopSec=195, with TimeoutStopSec=675"),
        (STOPS, STOPS_LATER, {}, "unit file: without TimeoutStopSec=195, with TimeoutStopSec=675"),
        (STOPS_LATER, STOPS, {}, "unit file sglang-default.service differs in lines that need no restart"),
        (STOPS_LATER, STOPS_LATER, {"needs_reload": True}, "systemd has not read the unit file"),
    ],
)
def test_lines_that_no_running_server_sees_are_written_without_a_restart(
    recorded: Spec, on_disk: Spec, of_unit: dict[str, Any], reason: str
) -> None:
    result = unit_plan(recorded, STOPS_LATER, on_disk, **of_unit)
    assert (result.unit, result.restart, result.gates, result.build) == (True, False, False, False)
    assert result.changed
    assert reason in result.reasons[0]
    lines = summary(result, RUNNING)
    assert lines[0].endswith("; no restart needed")
    assert lines[1] == "steps: write the unit"


def test_a_restart_for_another_reason_brings_the_unit_along() -> None:
    result = unit_plan(STOPS, STOPS_LATER, STOPS, drop_ins=("/etc/x.conf",))
    assert (result.unit, result.restart) == (False, True)
    assert len(result.reasons) == 2


def test_a_unit_as_asked_is_left() -> None:
    assert not unit_plan(STOPS, STOPS, STOPS).changed


def test_a_changed_setting_restarts_and_is_named() -> None:
    old = spec(arguments={"tp_size": 4})
    seen = replace(RUNNING, running=old.digest)
    result = plan(seen, InstanceState(phase=ACCEPTED, accepted=old.digest), old.as_dict(), built=False)
    assert (result.build, result.restart, result.gates) == (True, True, True)
    assert result.reasons == ["--tp-size 4 -> 8"]


@pytest.mark.parametrize("health", ["not listening yet", "HTTP 503"])
def test_a_server_that_still_loads_is_waited_for_not_restarted(health: str) -> None:
    result = plan(replace(RUNNING, health=health, age_s=20.0))
    assert (result.restart, result.gates) == (False, True)
    assert "still loading after 20 s" in result.reasons[0]


@pytest.mark.parametrize(
    ("start_ticks", "restarts", "restart"),
    [
        (5000, 0, True),  # this very process was accepted: it has loaded long ago
        (4000, 0, False),  # another one of this unit was: after a boot, or a restart by hand
        (4000, 1, True),  # systemd started it again
    ],
)
def test_a_young_server_that_stopped_answering_is_no_loading_one(
    start_ticks: int, restarts: int, restart: bool
) -> None:
    accepted = InstanceState(
        phase=ACCEPTED,
        accepted=WANTED.digest,
        history=[{"digest": WANTED.digest, "pid": 100, "start_ticks": start_ticks}],
    )
    unit = replace(UNIT, restarts=restarts)
    result = plan(replace(RUNNING, health="HTTP 503", age_s=20.0, unit=unit), accepted)
    assert result.gates
    assert result.restart is restart
    assert ("/health does not answer: HTTP 503" in result.reasons[0]) is restart


@pytest.mark.parametrize("phase", [SWITCHED, STOPPED])
def test_gates_that_have_not_passed_are_run_without_a_restart(phase: str) -> None:
    result = plan(state=InstanceState(phase=phase, accepted=WANTED.digest))
    assert (result.build, result.restart, result.gates) == (False, False, True)
    assert result.reasons == ["runs as asked, but its gates have not passed yet"]


def test_the_plan_is_said_as_a_person_would_say_it() -> None:
    old = spec(mode="debug")
    result = plan(
        replace(RUNNING, running=old.digest),
        InstanceState(phase=ACCEPTED, accepted=old.digest),
        old.as_dict(),
    )
    assert summary(result, RUNNING) == [
        "mode debug -> production; CUDA graphs on; restart needed",
        "steps: drain and stop, start, gates",
    ]


def test_a_deployment_that_somebody_edited_is_built_anew() -> None:
    result = make_plan(
        WANTED.digest, RECORD, RECORD, DONE, RUNNING, built=True, deployment=DIRECTORY + WANTED.digest,
        start_timeout=600, edited=["changed: sglang/srt/model.py"],
    )  # fmt: skip
    assert (result.build, result.restart, result.gates) == (True, True, True)
    assert result.reasons == ["source files of the deployment: changed: sglang/srt/model.py"]


def test_a_long_plan_has_a_line_each() -> None:
    result = Plan("aa", restart=True, reasons=["x" * 90, "y" * 90])
    assert summary(result, RUNNING) == ["x" * 90, "y" * 90, "restart needed", "steps: drain and stop, start"]


@pytest.mark.parametrize(
    ("restarts", "steps"),
    [(0, "steps: gates"), (2, "steps: count restarts anew, gates")],
    ids=["hand", "systemd"],
)
def test_a_process_that_never_passed_the_gates_is_measured_while_it_serves(restarts: int, steps: str) -> None:
    seen = replace(RUNNING, unit=replace(UNIT, restarts=restarts))
    found = plan(seen)
    assert not found.changed
    measure_again(found, ["restarted since its gates passed"], [], seen)
    assert (found.restart, found.gates, found.measure_again, found.recount) == (
        False,
        True,
        True,
        restarts > 0,
    )
    assert summary(found, seen) == ["restarted since its gates passed; no restart needed", steps]
    as_accepted = plan()
    measure_again(as_accepted, [], [], RUNNING)
    assert not as_accepted.changed


def test_accepted_but_not_enabled_is_only_enabled() -> None:
    result = plan(replace(RUNNING, unit=replace(UNIT, file_state="disabled")))
    assert (result.build, result.restart, result.gates, result.enable) == (False, False, False, True)


def test_port_holders() -> None:
    stranger = replace(RUNNING, listener=(Listener("0.0.0.0", 30000, (7,)),))
    invisible = replace(RUNNING, listener=(Listener("0.0.0.0", 30000, ()),))
    assert RUNNING.owns_port
    assert RUNNING.strangers == []
    assert stranger.strangers == [7]
    assert invisible.strangers == [0]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "00:00:00"), (3661, "01:01:01"), (2 * 86400 + 60, "2 d 00:01")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
