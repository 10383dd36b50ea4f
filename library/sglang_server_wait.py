#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Wait until an SGLang instance is ready or stopped, showing how far it is."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_server_wait
short_description: Wait until an SGLang instance is ready or stopped, showing how far it is
description:
  - The module looks for some seconds and returns. The action plugin of the same name repeats that over short
    connections, prints what changes, and ends when the goal is reached, can no longer be reached, or O(timeout) has
    passed. So a dropped connection costs nothing and a person sees progress. With O(armed) it reads the progress of a
    job that looks.
  - Ready means that the unit is active, a process of its own cgroup holds the port, and C(/health) answers 200. The
    log's "ready to roll" is no proof, since SGLang prints it after a warm-up that a stranger on the port answered.
options:
  until:
    description: What to wait for.
    type: str
    choices: [ready, stopped]
    default: ready
  instance:
    description: Name of the instance.
    type: str
    default: default
  host:
    description: Address that the server listens on.
    type: str
    default: 127.0.0.1
  port:
    description: Port that the server listens on.
    type: int
    default: 30000
  state_dir:
    description: Directory of all instances' state.
    type: path
    default: /var/lib/sglang
  timeout:
    description: Seconds to wait at most, over all calls.
    type: int
    default: 1800
  cursor:
    description: Where in the journal to read on. Set by the action plugin.
    type: str
    default: ''
  phase:
    description: Phase that was seen last. Set by the action plugin.
    type: str
    default: ''
  hold:
    description:
      - Seconds that one call may look again and again before it answers; it answers at once when it is over, and after
        three when it has something new to tell. Set by the action plugin.
    type: float
    default: 0
  told:
    description: What was told last. Set by the action plugin.
    type: str
    default: ''
  waited:
    description: Seconds that earlier calls have waited. Set by the action plugin.
    type: float
    default: 0
  armed:
    description:
      - With O(until=ready), RV(sglang_accept_rate#module:armed) of a measurement that waits on the host already. It is
        told that the server has been started, watches it itself, and goes on to measure when it has fired up.
        C(/health) has been asked by then, and the measurement does not pass before it has answered 200. Read by the
        action plugin, which does not call the module then.
    type: dict
    default: {}
  lease:
    description: Token of the lease that M(sglang_lease) gave; a long wait renews it, and ends when it is lost.
    type: str
attributes:
  check_mode:
    support: full
    description: Looks once and does not wait.
  diff_mode:
    support: none
    description: Nothing is changed.
  idempotent:
    support: full
    description: Only looks.
  platform:
    support: full
    description: Linux with systemd.
    platforms: posix
author:
  - Aerie (@aerie)
"""

EXAMPLES = r"""
- name: Wait for the server
  sglang_server_wait:
    until: ready
    port: 30000
    timeout: 900
"""

RETURN = r"""
done:
  description: The goal is reached; with O(armed), that the measurement has begun.
  type: bool
  returned: always
phase:
  description: How far the server is.
  type: str
  returned: without O(armed)
cursor:
  description: Where the next look reads on in the journal.
  type: str
  returned: without O(armed)
announced:
  description: The measurement O(armed) has begun.
  type: bool
  returned: with O(armed)
lease:
  description: The option, to tell this run's results from another's.
  type: str
  returned: always
waited_s:
  description: Seconds that were waited.
  type: float
  returned: always
"""

import time

from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance import lease_host
from ansible.module_utils.aerie.instance.state import InstanceStore
from ansible.module_utils.aerie.instance.waiting import Seen, Wait, too_late
from ansible.module_utils.basic import AnsibleModule


def wait(params: dict, check: bool) -> tuple[dict, AerieError | None]:
    """The result of one call, and the error with which the wait is over, if there is one."""
    store, token = InstanceStore(params["state_dir"], params["instance"]), params["lease"] or ""
    waiting = Wait(
        store,
        params["host"],
        params["port"],
        params["until"],
        renew=lambda: lease_host.renew(store, token),
        cursor=params["cursor"],
        phase=params["phase"],
    )
    began = time.monotonic()
    seen = waiting.look() if check else waiting.hold(params["hold"], params["told"])
    result = result_of(waiting, seen, token)
    if check:
        return result, None
    waited = params["waited"] + time.monotonic() - began
    # The controller holds the last call for what is left.
    late = not seen.over and params["hold"] and waited >= params["timeout"] - 0.1
    return result, too_late(waiting, seen, waited) if late else seen.error


def result_of(waiting: Wait, seen: Seen, token: str) -> dict:
    """What every call returns."""
    return {
        "changed": False,
        "done": seen.done,
        "phase": waiting.phase,
        "text": seen.text,
        "cursor": waiting.cursor,
        "waited_s": 0.0,
        "lease": token,
        "unit": seen.unit,
        "pid": seen.pid,
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "until": {"type": "str", "choices": ["ready", "stopped"], "default": "ready"},
            "instance": {"type": "str", "default": "default"},
            "host": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "default": 30000},
            "state_dir": {"type": "path", "default": "/var/lib/sglang"},
            "timeout": {"type": "int", "default": 1800},
            "cursor": {"type": "str", "default": ""},
            "phase": {"type": "str", "default": ""},
            "hold": {"type": "float", "default": 0},
            "told": {"type": "str", "default": ""},
            "waited": {"type": "float", "default": 0},
            "armed": {"type": "dict", "default": {}},
            "lease": {"type": "str"},
        },
        supports_check_mode=True,
    )
    try:
        result, error = wait(module.params, module.check_mode)
    except AerieError as problem:
        module.fail_json(**problem.as_result())
    if error is not None:
        module.fail_json(**{**result, **error.as_result()})
    module.exit_json(**result)


if __name__ == "__main__":
    main()
