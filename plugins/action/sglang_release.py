"""Controller side of ``sglang_release``: an install takes minutes, so it is watched. See ``watched.py``."""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import action_loader


class ActionModule(action_loader.get("watched", class_only=True)):
    """Only ``state: present`` can take long; the other states look and answer.

    ``state: begun`` starts it and comes back at once; a later task with ``begun`` watches it to its end.
    """

    # The road has compared before, by a call of its own; one that finds nothing to do is a job of a second.
    preview = False
    limit_option = "timeout"
    makes_ready = ("gpu_host_check", "sglang_deployment", "sglang_accept_rate")

    def runs_long(self, args: dict[str, Any]) -> bool:
        return args.get("state", "present") == "present"

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        args = self._task.args
        if args.get("state") == "begun" and not self._task.check_mode:
            begun: dict[str, Any] = self.leave_running({**args, "state": "present"}, task_vars or {}, "begun")
            return begun
        if args.get("begun") and not self._task.check_mode:
            ended: dict[str, Any] = self.watch_job(args["begun"], task_vars or {})
            return ended
        if (
            self._task.check_mode
        ):  # the look with which a run begins; if it finds nothing, a plan follows soon
            with self.making_ready("sglang_deployment", task_vars or {}):
                looked: dict[str, Any] = super().run(tmp, task_vars)
            return looked
        result: dict[str, Any] = super().run(tmp, task_vars)
        return result
