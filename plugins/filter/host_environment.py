"""What a GPU host gives to, and asks of, every server on it (role gpu_host), for the server's unit.

host_environment: ``gpu_host_nccl_env | host_environment(sglang_server_environment, gpu_host_required_env)`` is the
environment of an instance; an instance that contradicts the host is an error.
required_env_checks: ``gpu_host_required_env | required_env_checks`` are the unit's ExecStartPre= lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ansible.module_utils
from ansible import constants
from ansible.errors import AnsibleError


def _env() -> tuple[Any, Callable[[Any], str], type[Exception]]:
    # On a host Ansible makes the cores importable; in this process nobody does.
    for place in constants.DEFAULT_MODULE_UTILS_PATH or ():
        if place not in ansible.module_utils.__path__:
            ansible.module_utils.__path__.append(place)
    from ansible.module_utils.aerie.errors import AerieError
    from ansible.module_utils.aerie.gpu_host import env as gpu_host_env
    from ansible.module_utils.aerie.instance.arguments import text_of

    return gpu_host_env, text_of, AerieError


def host_environment(
    defaults: Mapping[str, Any], instance: Mapping[str, Any], required: Mapping[str, Any]
) -> dict[str, str]:
    """The environment of a server: the host's defaults, under the instance's own, under what the host requires."""
    env, text_of, failure = _env()

    def texts(values: Mapping[str, Any]) -> dict[str, str]:
        return {str(name): text_of(value) for name, value in values.items() if value is not None}

    try:
        return dict(env.merged(texts(defaults), texts(instance), texts(required)))
    except failure as error:
        raise AnsibleError(error.message()) from None  # type: ignore[attr-defined]


def required_env_checks(required: Mapping[str, Any]) -> str:
    """ExecStartPre= lines that refuse to start a server without the variables; a value of null means any value."""
    env, text_of, _ = _env()
    return str(
        env.start_checks(
            {str(name): None if value is None else text_of(value) for name, value in required.items()}
        )
    )


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"host_environment": host_environment, "required_env_checks": required_env_checks}
