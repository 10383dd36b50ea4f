"""Controller side of ``sglang_benchmark``: a load takes minutes, so it is watched (``watched.py``)."""

from __future__ import annotations

from ansible.plugins.loader import action_loader


class ActionModule(action_loader.get("watched", class_only=True)):
    """A measurement is never a no-op, so nothing is asked in check mode first."""

    preview = False
    limit_s = 6 * 3600
