"""From the catalogue of source patches to the list that modules take.

sglang_patch_entries: ``['fixes', 'debug'] | sglang_patch_entries(own, catalogue)``: the entries of these sets or names,
checked, and one's own; ``catalogue`` is a file or directory on the controller, empty for the role's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ansible.module_utils
from ansible import constants
from ansible.errors import AnsibleError


def sglang_patch_entries(
    wanted: Iterable[str], own: Iterable[Mapping[str, Any]] = (), catalogue: str = ""
) -> list[dict[str, Any]]:
    """The wanted entries in catalogue order."""
    # On a host Ansible makes the cores importable; in this process nobody does.
    for place in constants.DEFAULT_MODULE_UTILS_PATH or ():
        if place not in ansible.module_utils.__path__:
            ansible.module_utils.__path__.append(place)
    from ansible.module_utils.aerie.errors import AerieError
    from ansible.module_utils.aerie.patch import catalogue as patch_catalogue

    try:
        return list(patch_catalogue.inline(list(wanted), list(own), catalogue))
    except AerieError as error:
        raise AnsibleError(error.message()) from None


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"sglang_patch_entries": sglang_patch_entries}
