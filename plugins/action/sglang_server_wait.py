"""Repeat the module ``sglang_server_wait`` until its goal is reached, and print what changes."""

from __future__ import annotations

import os
import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

PAUSE_S = 1.0
SAY_AGAIN_S = 15.0
# A host that does not answer for this long while it is watched is given up; its unit goes on without us.
SILENCE_S = 120.0


def as_failure(message: str) -> dict[str, Any]:
    """The message, and the error in it as modules return theirs: {code, what, evidence, next}."""
    head, *rest = message.splitlines()
    what, _, code = head.rpartition(" [")
    told = {"evidence": [line.strip() for line in rest if line.startswith("  ")]}
    following = next((line.removeprefix("Next: ") for line in rest if line.startswith("Next: ")), "")
    return {"msg": message, "error": {"code": code.rstrip("]"), "what": what, **told, "next": following}}


class ActionModule(ActionBase):
    """Short looks instead of one long call: a connection that drops costs one look."""

    _requires_connection = True
    MODULE = "sglang_server_wait"
    # Seconds that one call may look again and again on the host, where a change is seen at once; 0: it looks once.
    HOLD_S = 15.0

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
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
                left = timeout - (time.monotonic() - start)
                arguments |= {"hold": max(0.0, min(self.HOLD_S, left)), "told": said}
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
            if waited > timeout:
                return {**result, "failed": True, **as_failure(self._too_late(arguments, result, waited))}
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
    def _too_late(arguments: dict[str, Any], result: dict[str, Any], waited: float) -> str:
        unit = f"sglang-{arguments.get('instance', 'default')}.service"
        ready = arguments.get("until", "ready") == "ready"
        code = "start-timeout" if ready else "stop-timeout"
        return (
            f"{unit} is not {arguments.get('until', 'ready')} after {waited:.0f} s [{code}]\n"
            f"  unit {result.get('unit')}, pid {result.get('pid')}, last seen: {result.get('text')}\n"
            f"Next: journalctl -u {unit} -b -e"
            + ("   # a slow disk may need a larger sglang_server_start_timeout" if ready else "")
        )
