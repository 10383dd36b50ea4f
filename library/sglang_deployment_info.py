#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Describe every SGLang instance on a host, and how it differs from its record."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_deployment_info
short_description: Describe every SGLang instance on a host, and how it differs from its record
description:
  - Reads the record and looks at reality (unit, process, listener, health, models) and names each difference.
  - "Looked at are unit, process, arguments, environment, listener and port, health, the source files of its tree
    against their wheel and Aerie's own patches, the models' files and the driver against the time of its acceptance,
    the release that it runs from, and the disk."
  - Of C(/server_info) one figure is read; the answer itself holds API keys and is never returned.
options:
  state_dir:
    description: Directory of all instances' state.
    type: path
    default: /var/lib/sglang
  verify:
    description:
      - Look closer, and fail when an instance differs from its record. Every source file is hashed, the server has to
        generate a token, and a run that did not end counts as a difference too. An instance that a run changes at the
        moment (its lease has not expired) is not compared, so that this is fit for cron.
    type: bool
    default: false
  host_environment:
    description:
      - The host's default environment of every instance (C(gpu_host_nccl_env)) as the inventory has it now. An instance
        that a change of it will restart is named. Not looked at when left out.
    type: dict
attributes:
  check_mode:
    support: full
    description: Changes nothing.
  diff_mode:
    support: none
    description: Changes nothing.
  idempotent:
    support: full
    description: Changes nothing.
  platform:
    support: full
    description: Linux with systemd.
    platforms: posix
author:
  - Aerie (@aerie)
"""

EXAMPLES = r"""
- name: Look at the host
  sglang_deployment_info:
  register: found

- name: Fail when something is not as recorded
  sglang_deployment_info:
    verify: true
"""

RETURN = r"""
instances:
  description: One record per instance.
  type: list
  elements: dict
  returned: always
table:
  description: The same as text for people.
  type: str
  returned: always
drift:
  description: Whether any instance differs from its record.
  type: bool
  returned: always
"""

from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance.drift import error_of
from ansible.module_utils.aerie.instance.overview import overview, table
from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state_dir": {"type": "path", "default": "/var/lib/sglang"},
            "verify": {"type": "bool", "default": False},
            "host_environment": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    verify = module.params["verify"]
    try:
        instances = overview(
            module.params["state_dir"], verify=verify, host_environment=module.params["host_environment"]
        )
    except AerieError as error:
        module.fail_json(**error.as_result())
    result = {
        "changed": False,
        "instances": instances,
        "table": table(instances),
        "drift": any(one["drift"] for one in instances),
    }
    error = error_of(instances) if verify else None
    if error is not None:
        module.fail_json(**result, **error.as_result())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
