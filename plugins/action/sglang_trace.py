"""Controller side of ``sglang_trace``: a trace takes up to minutes, so it is watched (``watched.py``)."""

from __future__ import annotations

from ansible.plugins.loader import action_loader


class ActionModule(action_loader.get("watched", class_only=True)):
    """A measurement is never a no-op, so nothing is asked in check mode first."""

    preview = False
    limit_s = 3600
