"""Controller side of ``sglang_hidden_states``: it is watched (``watched.py``), and its page is written here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.loader import action_loader

ROOT = Path(__file__).resolve().parents[2]


class ActionModule(action_loader.get("watched", class_only=True)):
    """The page comes back with the result, of a mismatch too, and becomes a file on the controller.

    A relative path is below the project, wherever ansible-playbook was started.
    """

    preview = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        html = result.pop("page_html", "")
        if html:
            path = ROOT / Path(self._task.args["page"]).expanduser()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(html, encoding="utf-8")
            result["page"] = str(path)
        return result
