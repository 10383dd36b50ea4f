"""Controller side of ``sglang_accept_rate``: a measurement takes minutes, so it is watched (``watched.py``)."""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import action_loader


class ActionModule(action_loader.get("watched", class_only=True)):
    """A measurement is never a no-op, so nothing is asked in check mode first."""

    preview = False

    def runs_long(self, args: dict[str, Any]) -> bool:
        return args.get("state", "measured") == "measured"
