"""The controller's part of a wait: a measurement that watches a start is watched, and told that somebody waits."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from action_made import load
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import action_loader
from test_action_watched import watched

JOB = {"id": "1", "started_file": "/t/started", "progress_file": "/t/p", "results_file": "", "limit_s": 10.0}
Made = tuple[Any, list[str]]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """The action of a task that waits for JOB's server, and what its looks did beside on the host."""
    monkeypatch.setattr(action_loader, "get", lambda name, class_only: watched.ActionModule)
    monkeypatch.setattr(ActionBase, "run", lambda *words: {})
    plugin = load("sglang_server_wait")
    action, done = plugin.ActionModule.__new__(plugin.ActionModule), []
    action._task = SimpleNamespace(args={"armed": JOB, "lease": "t", "timeout": 60}, check_mode=False)
    action._connection = SimpleNamespace(_shell=SimpleNamespace(quote=lambda text: f"'{text}'"))
    action.outcome = {}

    def watch_job(job: Any, task_vars: Any, *, until: str, also: Any) -> dict[str, Any]:
        assert (job, until) == (JOB, "ready")
        done.append(also())
        return dict(action.outcome)

    action.watch_job = watch_job
    return action, done


def test_it_is_told_that_the_server_has_been_started(made: Made) -> None:
    action, done = made
    result = action.run(None, {})
    assert done == ["touch '/t/started'"]
    assert {key: result[key] for key in ("changed", "done", "announced", "lease")} == {
        "changed": False,
        "done": True,
        "announced": True,
        "lease": "t",
    }
    assert result["waited_s"] < 5


def test_a_start_that_failed_fails_the_wait_under_its_lease(made: Made) -> None:
    action, _ = made
    action.outcome = {"failed": True, "msg": "ended [start-failed]", "error": {"code": "start-failed"}}
    result = action.run(None, {})
    assert result["failed"]
    assert not result["done"]
    assert not result["announced"]
    assert result["error"]["code"] == "start-failed"
    assert result["lease"] == "t"  # failed.yml asks whose start it was


def test_nobody_waits_for_a_run_that_was_killed(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its orphaned worker would keep the lease for ever."""
    action, done = made
    parents = iter([41, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    with pytest.raises(AnsibleActionFail, match="gone"):
        action.run(None, {})
    assert done == []


def test_a_check_looks_by_the_module(made: Made) -> None:
    action, done = made
    action._task.check_mode = True
    asked: list[dict[str, Any]] = []

    def execute(name: str, module_args: dict[str, Any], task_vars: Any) -> dict[str, Any]:
        asked.append(module_args)
        return {"changed": False, "done": False}

    action._execute_module = execute
    assert action.run(None, {})["done"] is False
    assert "armed" not in asked[0]
    assert done == []
