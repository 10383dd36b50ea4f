"""Check an inventory alone: names, types, and settings against each other. No host is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils
import yaml
from ansible import constants
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

PREFIXES = ("sglang_", "gpu_host_")
# The safe loader, in C where PyYAML was built with it: a third of a second less for four roles.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# What roles tell each other. They are variables of the host too, or of the play.
RESULTS = (
    "sglang_install_result",
    "sglang_install_needed",
    "gpu_host_result",
    "gpu_host_free",
    "sglang_patches_result",
)


class ActionModule(ActionBase):
    """Reads the roles' argument specs and the host's variables."""

    _requires_connection = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        # On a host Ansible makes the cores importable; in this process nobody does.
        for place in constants.DEFAULT_MODULE_UTILS_PATH or ():
            if place not in ansible.module_utils.__path__:
                ansible.module_utils.__path__.append(place)
        from ansible.module_utils.aerie import variables
        from ansible.module_utils.aerie.errors import AerieError

        values = task_vars or {}
        options: dict[str, dict[str, Any]] = {}
        for role in self._task.args["roles"]:
            options |= self._options(role)
        try:
            names = set(values) | set(
                values.get("hostvars", {}).get(values.get("inventory_hostname", ""), {})
            )
            variables.check_names(names - set(RESULTS), self._all_names(), PREFIXES)
            ours = {name: self._templar.template(values[name]) for name in options if name in values}
            variables.check_types(ours, options)
            variables.check_choices(ours, options)
            full = {name: option.get("default") for name, option in options.items()} | ours
            if sweep := self._task.args.get("sweep"):
                from ansible.module_utils.aerie_reports import asked

                asked.check(sweep, full)
            warnings = variables.check_server(full) if "sglang_server_model_path" in options else []
        except AerieError as error:
            return {**result, "failed": True, **error.as_result()}
        for text in warnings:
            self._display.warning(text)
        return {**result, "changed": False, "checked": len(ours)}

    def _all_names(self) -> set[str]:
        """Variables of every role: an inventory serves all playbooks, also those that take other roles."""
        specs = [one for place in self._roles_paths() for one in place.glob("*/meta/argument_specs.yml")]
        return {name for one in specs for name in self._options(one.parents[1].name)}

    def _options(self, role: str) -> dict[str, dict[str, Any]]:
        """All options of all entry points of a role."""
        for place in [*self._roles_paths()]:
            specs = Path(place) / role / "meta" / "argument_specs.yml"
            if specs.is_file():
                entries = yaml.load(specs.read_text(encoding="utf-8"), Loader=LOADER)["argument_specs"]
                return {
                    name: option
                    for entry in entries.values()
                    for name, option in (entry.get("options") or {}).items()
                }
        raise AnsibleError(f"role {role} was not found in {', '.join(map(str, self._roles_paths()))}")

    @staticmethod
    def _roles_paths() -> list[Path]:
        here = Path(__file__).resolve().parent.parent.parent / "roles"
        return [here]
