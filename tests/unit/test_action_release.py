"""The controller's part of sglang_release: an install that one task begins and another watches."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from action_made import load
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import action_loader
from test_action_watched import watched

JOB = {"id": "1", "results_file": "", "progress_file": "/t/progress.jsonl", "limit_s": 10.0}


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(action_loader, "get", lambda name, class_only: watched.ActionModule)
    return load("sglang_release")


def action(plugin: Any, args: dict[str, Any], started: dict[str, Any]) -> tuple[Any, list[Any]]:
    """The action of a task with these options, and what was asked of its base."""
    made, asked = plugin.ActionModule.__new__(plugin.ActionModule), []
    made._task = SimpleNamespace(args=args, check_mode=False, action="sglang_release")
    made._connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/t"))

    def start_job(options: dict[str, Any], task_vars: Any, files: Any = None) -> dict[str, Any]:
        asked.append(options)
        return started

    def watch_job(job: dict[str, Any], task_vars: Any) -> dict[str, Any]:
        asked.append(job)
        return {"changed": True, "elapsed_s": 80.0}

    made.start_job, made.watch_job = start_job, watch_job
    return made, asked


def test_one_task_begins_the_install_and_leaves_its_directory_to_it(plugin: Any) -> None:
    made, asked = action(plugin, {"release": "1", "state": "begun"}, {"job": JOB})
    assert made.run() == {"changed": False, "begun": JOB}
    assert asked == [{"release": "1", "state": "present"}]
    assert made._connection._shell.tmpdir is None


def test_one_that_did_not_start_is_the_task_s_failure(plugin: Any) -> None:
    made, _ = action(plugin, {"release": "1", "state": "begun"}, {"failed": True, "msg": "no"})
    assert made.run() == {"failed": True, "msg": "no"}
    assert made._connection._shell.tmpdir == "/t"  # nobody else removes it


def test_another_watches_it_to_its_end(plugin: Any) -> None:
    made, asked = action(plugin, {"release": "1", "begun": JOB}, {})
    assert made.run() == {"changed": True, "elapsed_s": 80.0}
    assert asked == [JOB]


def test_the_plan_s_payload_is_made_beside_the_look_that_comes_before_it(
    plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = action(plugin, {"release": "1"}, {})
    made._task.check_mode = True
    done: list[str] = []
    looking = threading.Event()

    def configure(name: str, args: dict[str, Any], task_vars: dict[str, Any]) -> None:
        if name == "sglang_deployment":
            assert looking.wait(5)  # while the module runs
            assert threading.current_thread() is not threading.main_thread()
            done.append(name)
            raise AnsibleError("cannot be made")  # fails in its own task
        done.append(name)

    def execute(module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        assert done == ["sglang_release"]
        looking.set()
        return {"changed": False}

    made._configure_module, made._execute_module = configure, execute
    monkeypatch.setattr(ActionBase, "run", lambda *words: {})
    assert made.run(None, {}) == {"changed": False}
    assert done == ["sglang_release", "sglang_deployment"]  # nobody leaves before it is there
