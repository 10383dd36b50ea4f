#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Gate a deployment on the speed-up that its last benchmark showed."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_speedup
short_description: Gate a deployment on the speed-up that its last benchmark showed
description:
  - Reads what C(benchmark.yml) or C(tune.yml) left on the host and fails unless the very deployment, told by its
    digest, was shown to be faster than without speculation. It measures nothing and starts nothing.
options:
  instance:
    description: Name of the instance.
    type: str
    default: default
  state_dir:
    description: Directory of all instances' state.
    type: path
    default: /var/lib/sglang
  digest:
    description: Digest of the deployment.
    type: str
    required: true
  required:
    description: What the lower bound of the speed-up's interval must reach.
    type: float
    required: true
  batch:
    description: Batch size that is judged. When left out, the smallest that was measured.
    type: int
attributes:
  check_mode:
    support: full
    description: It changes nothing, so check mode does the same.
  diff_mode:
    support: none
    description: It changes nothing.
  idempotent:
    support: full
    description: It changes nothing.
  platform:
    support: full
    description: Any host.
    platforms: posix
author:
  - Aerie (@aerie)
"""

EXAMPLES = r"""
- name: Refuse a deployment that was not shown to be faster than without speculation
  sglang_speedup:
    digest: "{{ plan.digest }}"
    required: 1.0
"""

RETURN = r"""
reason:
  description: Why it passes, in words.
  returned: success
  type: str
  sample: "speculation gives x 1.31 [1.27, 1.35] at batch 1: its lower bound clears 1"
error:
  description: What failed, with C(code), C(what), C(evidence) and C(next).
  returned: on failure
  type: dict
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.measure import speedup
from ansible.module_utils.basic import AnsibleModule

ARGUMENTS: dict[str, dict[str, Any]] = {
    "instance": {"type": "str", "default": "default"},
    "state_dir": {"type": "path", "default": "/var/lib/sglang"},
    "digest": {"type": "str", "required": True},
    "required": {"type": "float", "required": True},
    "batch": {"type": "int"},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    options = module.params
    try:
        known = speedup.recorded(Path(options["state_dir"]) / options["instance"])
        reason = speedup.judge(known, options["digest"], options["required"], options["batch"])
    except AerieError as error:
        module.fail_json(changed=False, **error.as_result())
    module.exit_json(changed=False, reason=reason)


if __name__ == "__main__":
    main()
