"""Repeat the module ``sglang_server_wait``, or read what a job on the host tells that looks itself, until the goal is
reached, and print what changes."""

from __future__ import annotations

import os
import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import action_loader

PAUSE_S = 1.0
SAY_AGAIN_S = 15.0
# A host that does not answer for this long while it is watched is given up; its unit goes on without us.
SILENCE_S = 120.0


class ActionModule(action_loader.get("watched", class_only=True)):
    """Short looks instead of one long call: a connection that drops costs one look.

    Where a measurement waits on the host (``armed``) it watches the start itself, and is watched here until it begins.
    """

    _requires_connection = True
    MODULE = "sglang_server_wait"
    # Seconds that one call may look again and again on the host, where a change is seen at once; 0: it looks once.
    HOLD_S = 15.0

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        ActionBase.run(self, tmp, task_vars)
        arguments = dict(self._task.args)
        armed = arguments.pop("armed", None)
        if armed and not self._task.check_mode:
            return self._watch_armed(armed, arguments, task_vars or {})
        return self._look_on(arguments, task_vars)

    def _watch_armed(
        self, job: dict[str, Any], arguments: dict[str, Any], task_vars: dict[str, Any]
    ) -> dict[str, Any]:
        """Say that the server has been started, and at each look that this run still waits: it renews the lease."""
        began = time.monotonic()
        also = self.still_here(job["started_file"])
        result = self.watch_job(job, task_vars, until="ready", also=also)
        reached = not result.get("failed")
        told = {"done": reached, "announced": reached, "lease": arguments.get("lease") or ""}
        return {"changed": False, **result, **told, "waited_s": round(time.monotonic() - began, 1)}

    def _look_on(self, arguments: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        timeout = self.limit(arguments)
        start = last_answer = time.monotonic()
        # A start is no news: a look that has nothing else to tell goes on looking.
        said, said_at = "importing" if arguments.get("until", "ready") == "ready" else "", 0.0
        changed = False
        run = os.getppid()
        while True:
            if (
                os.getppid() != run
            ):  # ansible-playbook was killed: nobody waits, and nobody may renew its lease
                return {"failed": True, "msg": "the run that waited is gone"}
            if self.HOLD_S:
                waited = time.monotonic() - start
                hold = max(0.1, min(self.HOLD_S, timeout - waited))
                arguments |= {"hold": hold, "told": said, "waited": waited}
            try:
                result = self._execute_module(self.MODULE, module_args=arguments, task_vars=task_vars)
                lost = bool(result.get("unreachable"))
            except AnsibleConnectionFailure as error:
                result, lost = {"msg": str(error), "unreachable": True}, True
            waited = time.monotonic() - start
            if lost:
                if time.monotonic() - last_answer > SILENCE_S:
                    return result
                self._say(task_vars, f"no connection; trying again ({waited:.0f} s)")
                time.sleep(3.0)
                continue
            last_answer = time.monotonic()
            result["waited_s"] = round(waited, 1)
            changed = changed or bool(result.get("changed"))
            result["changed"] = changed
            if result.get("failed") or result.get("done") or self._task.check_mode:
                return result
            text = str(result.get("text") or "")
            if text != said or time.monotonic() - said_at > SAY_AGAIN_S:
                self._say(task_vars, f"{text} ({waited:.0f} s)")
                said, said_at = text, time.monotonic()
            if waited > timeout and (late := self._too_late(result, waited)):
                return {**result, "failed": True, **late}
            arguments |= self._further(result)
            if not self.HOLD_S:
                time.sleep(PAUSE_S)

    def limit(self, arguments: dict[str, Any]) -> float:
        """Seconds to wait at most."""
        return float(arguments.get("timeout", 1800))

    def _say(self, task_vars: dict[str, Any] | None, text: str) -> None:
        host = (task_vars or {}).get("inventory_hostname", "host")
        self._display.display(f"  {host}: {text}", color="bright gray")

    @staticmethod
    def _further(result: dict[str, Any]) -> dict[str, Any]:
        """Options with which the next look goes on from this one."""
        return {"cursor": result.get("cursor", ""), "phase": result.get("phase", "")}

    @staticmethod
    def _too_late(result: dict[str, Any], waited: float) -> dict[str, Any] | None:
        """``msg`` and ``error`` of a wait whose time is over; None where the module says that itself."""
        return None
