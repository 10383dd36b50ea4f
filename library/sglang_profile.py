#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Read what the timers in a profiled server wrote."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_profile
short_description: Read what the timers in a profiled server wrote
description:
  - A server in mode C(profile) writes a line for each decode cycle. This sums up those of a time, by batch size, as
    draft, verify, draft-extend and the rest. It sends nothing and changes nothing.
  - The parts are times of the GPU (CUDA events) or, on a CPU, of the clock. What inside a part is communication they do
    not tell; only a torch trace does.
options:
  events:
    description: Directory that the deployment's timers write to.
    type: path
    required: true
  since:
    description: Count cycles from this time on, in seconds since 1970. The host's clock counts.
    type: float
    default: 0.0
  batch_sizes:
    description: Tell only of these. When left out, of every size that enough cycles had.
    type: list
    elements: int
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
- name: Sum up the cycles of the last load
  sglang_profile:
    events: /var/lib/sglang/default/current/probes
    since: "{{ load_began }}"
"""

RETURN = r"""
batches:
  description: >-
    By batch size, C(cycles), C(cycle_ms), C(tokens_per_cycle) and C(parts), in which each of C(draft), C(verify),
    C(extend) and C(rest) has C(share), C(median_ms), C(p10_ms) and C(p90_ms).
  returned: success
  type: list
  elements: dict
error:
  description: What failed, with C(code), C(what), C(evidence) and C(next).
  returned: on failure
  type: dict
"""

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.files import read_text
from ansible.module_utils.aerie.measure import cycles
from ansible.module_utils.basic import AnsibleModule

ARGUMENTS: dict[str, dict[str, Any]] = {
    "events": {"type": "path", "required": True},
    "since": {"type": "float", "default": 0.0},
    "batch_sizes": {"type": "list", "elements": "int"},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    text = read_text(Path(module.params["events"]) / "cycles.jsonl") or ""
    try:
        read = cycles.read_cycles(text.splitlines(), module.params["since"], time.time())
        found = cycles.figures(read, module.params["batch_sizes"])
    except AerieError as error:
        module.fail_json(changed=False, **error.as_result())
    module.exit_json(changed=False, batches=found)


if __name__ == "__main__":
    main()
