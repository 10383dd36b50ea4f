"""Controller side of ``sglang_source_patch``: reads the catalogue and sends the wanted entries along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible import constants
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """The host never sees the catalogue, only the entries that it is to have."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        # On a host Ansible makes the cores importable; in this process nobody does.
        for place in constants.DEFAULT_MODULE_UTILS_PATH or ():
            if place not in ansible.module_utils.__path__:
                ansible.module_utils.__path__.append(place)
        from ansible.module_utils.aerie.errors import AerieError
        from ansible.module_utils.aerie.patch import catalogue as patch_catalogue

        args = dict(self._task.args)
        wanted, own, catalogue = args.get("patches"), args.get("own") or [], args.get("catalogue") or ""
        if args.get("entries") is None and args.get("state", "applied") == "applied":
            wanted = ["fixes"] if wanted is None else wanted
            names = wanted.split(",") if isinstance(wanted, str) else list(wanted)
            place = Path(catalogue).expanduser() if catalogue else ""
            try:
                args["entries"] = patch_catalogue.inline([name.strip() for name in names], own, place)
            except AerieError as error:
                return {**result, "failed": True, **error.as_result()}
        for name in ("patches", "own", "catalogue"):
            args.pop(name, None)
        return {**result, **self._execute_module(module_args=args, task_vars=task_vars)}
