#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Take a torch trace of a running server and tell how much of the GPU's time is communication."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_trace
short_description: Tell from a torch trace how much of the GPU's time is communication
description:
  - Puts a load of its own on a server in mode C(profile), lets SGLang trace a few decode cycles (C(/start_profile)),
    and reads the trace of each rank.
  - Kernels are told by their names (NCCL, custom all-reduce, all-gather and the like). Moments are counted, not
    durations, so what overlaps is not counted twice; communication that runs beside computing is told apart. A
    collective's kernel waits for the other ranks, and that waiting is part of its time.
  - A share is claimed only when there is a trace of every rank and it holds kernels of a GPU. Otherwise C(why) says
    why not. A trace slows the server down, so nothing is timed meanwhile.
  - The traces stay in the timers' directory until the next ones are made; Perfetto and chrome://tracing open them.
version_added: "0.2.0"
author:
  - Aerie (@aerie)
extends_documentation_fragment: sglang_measure
options:
  api_key_file:
    description: The deployment's C(config.yaml) on the host, to read the keys from when O(api_key) is not given. Where
      there is one for administrators, C(/start_profile) is asked with that.
  events:
    description: Directory that the deployment's timers write to. The traces go into a directory in it.
    type: path
    required: true
  user:
    description: The service user, whom the traces belong to. When left out, the task's.
    type: str
  steps:
    description: How many decode cycles are traced.
    type: int
    default: 10
  batch:
    description: How many requests are in flight meanwhile.
    type: int
    default: 1
  max_new_tokens:
    description: Tokens of each request. They have to last until the trace is over. When left out, enough for O(steps)
      and 32 cycles more, in which all drafts are accepted.
    type: int
  timeout:
    description: Seconds for everything.
    type: float
    default: 300.0
attributes:
  diff_mode:
    support: none
    description: It changes nothing but its own directory of traces.
notes:
  - Run on SGLang 0.5.23 on a CPU, where a trace holds no kernel. The request's fields were read in all 69 releases
    from 0.4.4.post2 to 0.5.23. On a GPU it has not been run.
"""

EXAMPLES = r"""
- name: How much of it is communication
  sglang_trace:
    url: http://127.0.0.1:30000
    events: /var/cache/sglang/default/profile
    user: sglang
    batch: 8
  register: traced
"""

RETURN = r"""
trace:
  description: What can be claimed, and each rank's figures.
  returned: when a trace was made
  type: dict
  contains:
    share:
      description: Communication alone, as a share of the moments in which a kernel ran; the rank in the middle. Null
        when nothing can be claimed.
      type: float
    share_low:
      description: The lowest of all ranks.
      type: float
    share_high:
      description: The highest of all ranks.
      type: float
    share_beside:
      description: Communication beside computing, the rank in the middle.
      type: float
    why:
      description: Why nothing can be claimed.
      type: str
    steps:
      description: Decode cycles that were asked for.
      type: int
    batch:
      description: Requests in flight.
      type: int
    directory:
      description: Where the traces lie on the host.
      type: str
    ranks:
      description: For each rank C(kernels), C(busy_ms), C(alone_ms), C(beside_ms), C(share) and the C(names) that
        counted as communication.
      type: list
      elements: dict
known_after:
  description: Event after which the result can be known.
  returned: in check mode
  type: str
  sample: start
error:
  description: What failed, with C(code), C(what), C(evidence) and C(next).
  returned: on failure
  type: dict
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.aerie.accept.arguments import SERVER, client_of, progress_of
from ansible.module_utils.aerie.accept.client import HttpClient
from ansible.module_utils.aerie.accept.prompts import choose_prompts
from ansible.module_utils.aerie.accept.server import server_settings
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance.keys import admin_key
from ansible.module_utils.aerie.measure.alone import only_load
from ansible.module_utils.aerie.measure.trace import trace_figures
from ansible.module_utils.aerie.measure.trace_run import TraceJob, run_trace
from ansible.module_utils.basic import AnsibleModule

ARGUMENTS: dict[str, dict[str, Any]] = {
    **SERVER,
    "events": {"type": "path", "required": True},
    "user": {"type": "str"},
    "steps": {"type": "int", "default": 10},
    "batch": {"type": "int", "default": 1},
    "max_new_tokens": {"type": "int"},
    "timeout": {"type": "float", "default": 300.0},
}
PROMPTS = 16
SPARE_CYCLES = 32
"""Between the first cycle that is seen and the begin of the trace."""


def run(params: dict[str, Any]) -> dict[str, Any]:
    """The module's result; raises `AerieError`."""
    client = client_of(params)
    admin = HttpClient(params["url"], admin_key(params["api_key"], params["api_key_file"]))
    progress = progress_of(params)
    progress.begin("asking the server")
    settings = server_settings(client, 20.0)
    enough = (params["steps"] + SPARE_CYCLES) * (settings.draft_tokens or 4)
    job = TraceJob(
        events=Path(params["events"]),
        batch=params["batch"],
        steps=params["steps"],
        max_new_tokens=params["max_new_tokens"] or enough,
        timeout=params["timeout"],
        ranks=settings.ranks,
        user=params["user"],
    )
    with only_load(params["url"], params["timeout"], progress.say):
        place, ranks = run_trace(client, admin, job, choose_prompts(PROMPTS).texts(), progress.say)
    found = trace_figures(ranks, job.ranks)
    return {"trace": {**found, "steps": job.steps, "batch": job.batch, "directory": str(place)}}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    if module.check_mode:
        module.exit_json(changed=False, skipped=True, known_after="start")
    try:
        result = run(module.params)
    except AerieError as error:
        module.fail_json(changed=False, **error.as_result())
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
