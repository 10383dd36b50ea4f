"""Callback: write each task's start as a JSON line, and kill ansible-playbook itself with SIGKILL where it is told to.

AERIE_EVENTS: the file. AERIE_KILL_AT: name of the task, without its role. AERIE_KILL_DELAY: seconds after that start; 0
kills at the boundary, before the task, more than 0 in the middle of it. AERIE_KILL_ALL: its children die with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: boundaries
type: notification
short_description: Write task starts and kill the run at one of them
description: For the fault matrix alone.
"""


def below(pid: int) -> list[int]:
    """The process's children and theirs. Ansible's workers are in sessions of their own, so no group names them."""
    try:
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*children, *(one for child in children for one in below(child))]


class CallbackModule(CallbackBase):  # type: ignore[misc]
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "boundaries"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.events = Path(os.environ["AERIE_EVENTS"])
        self.kill_at = os.environ.get("AERIE_KILL_AT", "")
        self.delay = float(os.environ.get("AERIE_KILL_DELAY", "0"))
        self.everything = bool(os.environ.get("AERIE_KILL_ALL"))

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        self.write({"event": "task", "n": self.count, "name": task.get_name(), "action": task.action})
        if self.kill_at and task.get_name().rpartition(" : ")[2] == self.kill_at:
            self.kill()
        self.count += 1

    def kill(self) -> None:
        victim = os.getpid()
        if self.delay and os.fork():
            return
        time.sleep(self.delay)
        if victim not in (os.getpid(), os.getppid()):  # the run has ended by itself
            os._exit(0)
        for pid in [victim, *(below(victim) if self.everything else [])]:
            if pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if victim != os.getpid():
            os._exit(0)
        os.kill(victim, signal.SIGKILL)

    def v2_runner_on_ok(self, result: Any) -> None:
        self.write({"event": "ok", "n": self.count - 1, "changed": bool(result._result.get("changed"))})

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        kept = {key: result._result.get(key) for key in ("msg", "error")}
        self.write({"event": "failed", "n": self.count - 1, **kept})

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self.write({"event": "unreachable", "n": self.count - 1})

    def v2_runner_on_skipped(self, result: Any) -> None:
        self.write({"event": "skipped", "n": self.count - 1})

    def write(self, event: dict[str, Any]) -> None:
        with self.events.open("a") as file:
            file.write(json.dumps({**event, "t": round(time.time(), 3)}) + "\n")
