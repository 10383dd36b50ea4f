"""Controller side of ``sglang_deployment``: a plan that takes the lease says who asks for it (``sglang_lease.py``)."""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import action_loader


class ActionModule(action_loader.get("sglang_lease", class_only=True)):
    """Every other state is the module alone."""

    MODULE = "sglang_deployment"

    def claim(self, arguments: dict[str, Any]) -> dict[str, Any] | None:
        if arguments.get("state", "planned") != "planned" or not arguments.get("claim"):
            return None
        arguments["claim"] = dict(arguments["claim"])
        found: dict[str, Any] = arguments["claim"]
        return found
