"""Controller side of ``sglang_accept_rate``: a measurement takes minutes, so it is watched (``watched.py``)."""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import action_loader


class ActionModule(action_loader.get("watched", class_only=True)):
    """A measurement is never a no-op, so nothing is asked in check mode first.

    ``state: armed`` starts it and comes back at once; a later task with ``armed`` watches it to its end, or with
    ``state: prepared`` until its prompts are token ids.
    """

    preview = False

    def runs_long(self, args: dict[str, Any]) -> bool:
        return args.get("state", "measured") == "measured"

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        args = self._task.args
        if args.get("state") == "armed" and not self._task.check_mode:
            self.limit_s += int(
                (args.get("run") or {}).get("start_timeout") or 0
            )  # the module refuses what is missing
            return self.leave_running(dict(args), task_vars or {}, "armed", {"started_file": "started"})
        if args.get("armed") and not self._task.check_mode:
            return self.go_on_watching(args["armed"], task_vars or {})
        result: dict[str, Any] = super().run(tmp, task_vars)
        return result

    def go_on_watching(self, job: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """The result of a job that an earlier task started."""
        if self._task.args.get("state") == "prepared":
            # Its result is there already when it ended on the way, with what was wrong.
            result: dict[str, Any] = self.watch_job(job, task_vars, until="prepared")
            return result or {"changed": False}
        also = self.still_here(job["started_file"])  # its last look renews the lease
        result = self.watch_job(job, task_vars, after="ready", also=also)
        return result
