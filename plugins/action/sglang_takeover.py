"""Repeat the module ``sglang_takeover`` until the trees have ended, and print how far they are."""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import action_loader


class ActionModule(action_loader.get("sglang_server_wait", class_only=True)):
    """The module ends every takeover within its own bound; this longer stop is for one that cannot."""

    MODULE = "sglang_takeover"
    HOLD_S = 0.0
    # Beside the bound: 60 s in which SIGKILL must have worked, for each tree, and the last look.
    BESIDE_S = 90.0

    def limit(self, arguments: dict[str, Any]) -> float:
        return float(arguments.get("timeout", 120)) + self.BESIDE_S

    @staticmethod
    def _further(result: dict[str, Any]) -> dict[str, Any]:
        return {}

    @staticmethod
    def _too_late(result: dict[str, Any], waited: float) -> dict[str, Any] | None:
        what, evidence = (
            f"the takeover has not ended after {waited:.0f} s",
            f"last seen: {result.get('text')}",
        )
        msg = (
            f"{what} [takeover-not-ended]\n  {evidence}\nNext: run again; it goes on with the same processes"
        )
        *_, following = msg.partition("Next: ")
        error = {"code": "takeover-not-ended", "what": what, "evidence": [evidence], "next": following}
        return {"msg": msg, "error": error}
