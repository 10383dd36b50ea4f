"""The pipeline's summary, over artifacts in the form that ansible-runner 2.4 leaves."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

PATH = Path(__file__).resolve().parents[2] / "ci" / "summary.py"
SPEC = importlib.util.spec_from_file_location("ci_summary", PATH)
assert SPEC is not None
assert SPEC.loader is not None
summary = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(summary)

NOTE = {"outcome": "accepted", "release": "0.5.23", "gates": {"accept_length": 3.1}, "failure": {}}
FAILED_NOTE = {**NOTE, "outcome": "failed", "failure": {"code": "accept-length-below-floor"}}


def artifacts(path: Path, status: str, rc: int, *events: dict[str, Any]) -> Path:
    (path / "job_events").mkdir(parents=True, exist_ok=True)
    (path / "status").write_text(status)
    (path / "rc").write_text(str(rc))
    for number, event in enumerate(events, 1):
        (path / "job_events" / f"{number}-{uuid4()}.json").write_text(json.dumps(event))
    for name in ("99-torn", "ab1c-partial"):  # what a killed run leaves
        (path / "job_events" / f"{name}.json").write_text('{"event": "runner_on_')
    return path


def stats(host: str, note: dict[str, Any]) -> dict[str, Any]:
    """As set_stats with per_host leaves it: seen with ansible-runner 2.4, whose playbook_on_stats is empty then."""
    result = {"ansible_stats": {"data": {"aerie": note}, "per_host": True, "aggregate": True}}
    return {"event": "runner_on_ok", "event_data": {"host": host, "res": result}}


def failure(host: str, kind: str = "runner_on_failed") -> dict[str, Any]:
    result = {"msg": "port 8000 is held", "error": {"code": "port-taken"}}
    return {"event": kind, "event_data": {"host": host, "task": "Preflight", "res": result}}


def test_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = artifacts(tmp_path / "1", "successful", 0, stats("gpu1", NOTE))
    assert summary.main([str(path)]) == 0
    assert json.loads(capsys.readouterr().out) == {"status": "successful", "rc": 0, "hosts": {"gpu1": NOTE}}


def test_a_gate_that_failed_is_the_roles_own_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = artifacts(
        tmp_path / "1", "failed", 2, failure("gpu1"), stats("gpu1", FAILED_NOTE), failure("gpu1")
    )
    assert summary.main([str(path)]) == 1
    told = json.loads(capsys.readouterr().out)["hosts"]["gpu1"]
    assert told["failure"]["code"] == "accept-length-below-floor"
    assert told["gates"]["accept_length"] == 3.1


def test_what_a_host_went_back_to_is_added_to_the_note(tmp_path: Path) -> None:
    notes = [stats("gpu1", FAILED_NOTE), stats("gpu1", {"back_to": "abc"})]
    hosts = summary.summarise(artifacts(tmp_path / "1", "failed", 2, *notes, failure("gpu1")))["hosts"]
    assert hosts["gpu1"] == {**FAILED_NOTE, "back_to": "abc"}


def test_what_failed_before_the_role_is_told_from_the_events(tmp_path: Path) -> None:
    path = artifacts(tmp_path / "1", "failed", 2, failure("gpu1"), failure("gpu2", "runner_on_unreachable"))
    hosts = summary.summarise(path)["hosts"]
    assert hosts["gpu1"]["failure"] == {
        "step": "Preflight",
        "code": "port-taken",
        "message": "port 8000 is held",
    }
    assert (hosts["gpu1"]["outcome"], hosts["gpu2"]["outcome"]) == ("failed", "unreachable")


def test_a_run_under_a_name_that_was_used_before_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seen with ansible-runner 2.4: it leaves the old events, and the old run's hosts would be this one's."""
    artifacts(tmp_path / "1", "failed", 2, failure("gpu1"), failure("gpu2"))
    path = artifacts(tmp_path / "1", "successful", 0, stats("gpu1", NOTE))
    assert summary.main([str(path)]) == 2
    told = capsys.readouterr()
    assert not told.out
    assert "more than one run" in told.err
    assert "Next: remove it" in told.err


def test_no_artifacts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert summary.main([str(tmp_path)]) == 2
    assert "Next:" in capsys.readouterr().err
