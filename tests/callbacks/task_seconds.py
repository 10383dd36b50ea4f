"""Ansible callback: appends ``{"play", "task", "seconds", "job"}`` for each task to the file $AERIE_TASK_SECONDS.

A task's seconds go up to the beginning of the next one, so that they add up to the whole run. ``job``: those in
which a watched job was at work on the host (``elapsed_s`` of its result, see plugins/action/watched.py), else 0; the
gates' measurement may have begun before its task.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: task_seconds
type: aggregate
short_description: How long each task took
description: Appends a JSON line for each task to the file that the environment variable AERIE_TASK_SECONDS names.
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "task_seconds"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._file = os.environ.get("AERIE_TASK_SECONDS")
        self._play = self._task = ""
        self._job = 0.0
        self._began = time.monotonic()

    def _end(self) -> None:
        now = time.monotonic()
        if self._task and self._file:
            spent = {"seconds": round(now - self._began, 3), "job": self._job}
            line = {"play": self._play, "task": self._task, **spent}
            with open(self._file, "a", encoding="utf-8") as file:  # noqa: PTH123
                file.write(json.dumps(line) + "\n")
        self._task, self._began, self._job = "", now, 0.0

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._end()
        self._play = play.get_name()

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        self._end()
        self._task = task.get_name()

    def v2_runner_on_ok(self, result: Any, **_: Any) -> None:
        told = result.result if hasattr(result, "result") else result._result
        self._job = max(self._job, float(told.get("elapsed_s") or 0.0))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._end()
