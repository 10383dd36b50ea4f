#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Stop a server that was started by hand, exactly its process tree, and keep a note to go back by."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_takeover
short_description: Stop a server that was started by hand, exactly its process tree, and keep a note to go back by
description:
  - For servers that a person started (C(nohup python -m sglang.launch_server …)) on the port or the GPUs of an
    instance. Nothing is ever stopped by name, and nothing outside the tree of the named process.
  - The tree is the process and everything below it at that moment, each known by pid and start time; both are looked
    at again right before a signal, through a handle that a new process of the same number cannot get.
  - SIGTERM goes to the process that serves (after a script above it, so that this does not start it again), which
    lets SGLang drain. SIGKILL follows after O(timeout) seconds, or 20 s after the main process has ended.
  - The note (command line with secrets hidden, user, working directory, log, the values of tuning variables and the
    names of all others) is in C(<state_dir>/<instance>/before.json); C(status) shows it.
  - The module does one thing and returns; the action plugin of the same name repeats it over short connections until
    the tree has ended, and prints how far it is. A run that dies in between is carried on by the next.
options:
  processes:
    description:
      - The processes to take over, each V(PID:START) with the start time in clock ticks since boot, as the refusal
        printed it. One that is gone, or whose pid has another start time, is said and left alone.
    type: list
    elements: str
    required: true
  instance:
    description: Name of the instance.
    type: str
    default: default
  port:
    description: Port whose open connections are counted.
    type: int
    default: 30000
  state_dir:
    description: Directory of all instances' state.
    type: path
    default: /var/lib/sglang
  timeout:
    description: Seconds that running requests get to finish before SIGKILL.
    type: int
    default: 120
  lease:
    description: Token of the lease that M(sglang_lease) gave; without one it works only while nobody holds a lease.
    type: str
attributes:
  check_mode:
    support: full
    description: Says what would be stopped.
  diff_mode:
    support: none
    description: Processes are no text to compare.
  idempotent:
    support: full
    description: A tree that has ended is not touched again.
  platform:
    support: full
    description: Linux 5.3 or later (pidfd_open) with systemd.
    platforms: posix
author:
  - Aerie (@aerie)
"""

EXAMPLES = r"""
- name: Take over what was started by hand
  sglang_takeover:
    processes: ["4711:81234567"]
    port: 30000
    timeout: 120
"""

RETURN = r"""
done:
  description: All of the trees have ended.
  type: bool
  returned: always
text:
  description: How far it is, with the number of open connections.
  type: str
  returned: always
killed:
  description: SIGKILL was needed, so the next start is gated over more requests.
  type: bool
  returned: always
waited_s:
  description: Seconds that were waited.
  type: float
  returned: always
"""

from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance import lease_host
from ansible.module_utils.aerie.instance.host_errors import host_error
from ansible.module_utils.aerie.instance.state import InstanceStore
from ansible.module_utils.aerie.strangers.takeover import Takeover
from ansible.module_utils.basic import AnsibleModule


def look(store: InstanceStore, one: Takeover, lease: str) -> dict:
    """One look at a tree and the next thing to do to it, under the instance's lease."""
    with lease_host.at_work(store, lease, "sglang_takeover", "takeover"):
        return one.look()


def step(params: dict, *, check: bool) -> dict:
    """One look at every tree."""
    store = InstanceStore(params["state_dir"], params["instance"])
    result = {"changed": False, "done": True, "text": "", "killed": False, "waited_s": 0.0}
    said = []
    for token in params["processes"]:
        one = Takeover(store, token, params["port"], params["timeout"])
        found = one.foreseen() if check else look(store, one, params["lease"] or "")
        said.append(found["text"])
        result["changed"] = result["changed"] or found["acted"]
        result["killed"] = result["killed"] or found["killed"]
        result["done"] = result["done"] and found["done"]
    return {**result, "text": "; ".join(said)}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "processes": {"type": "list", "elements": "str", "required": True},
            "instance": {"type": "str", "default": "default"},
            "port": {"type": "int", "default": 30000},
            "state_dir": {"type": "path", "default": "/var/lib/sglang"},
            "timeout": {"type": "int", "default": 120},
            "lease": {"type": "str"},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**step(module.params, check=module.check_mode))
    except AerieError as error:
        module.fail_json(**error.as_result())
    except OSError as error:
        module.fail_json(**host_error(error).as_result())


if __name__ == "__main__":
    main()
