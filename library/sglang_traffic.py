#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Close an SGLang instance's ports to other hosts, and open them again."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_traffic
short_description: Close an SGLang instance's ports to other hosts, and open them again
description:
  - Keeps one chain for the instance in the nftables table C(inet aerie) and touches no other chain or table. Each
    change is one transaction.
  - The rendezvous port is closed to other hosts as long as the instance is served; the serving port from the start of
    a drain until the gates have passed. New TCP connections get a reset. Connections that exist go on, so a client
    that keeps one alive can still send requests during the drain; the drain's time limit bounds that. Loopback
    is never closed.
  - The rules that the next start needs are kept in C(traffic.nft) in the instance's state directory. The unit loads
    that file before each start, also one by systemd after a crash or a reboot, and removes the chain after each end.
options:
  state:
    description:
      - V(refused) refuses new connections from other hosts to the serving port, and closes the rendezvous port.
      - V(admitted) closes the rendezvous port alone.
      - V(absent) closes nothing and removes the chain, and the table with the last one. The unit's next start
        closes the rendezvous port again.
    type: str
    choices: [refused, admitted, absent]
    required: true
  instance:
    description: Name of the instance.
    type: str
    default: default
  port:
    description: The serving port. Without it, the current deployment's. With V(refused) both are refused.
    type: int
  rendezvous_port:
    description: The rendezvous port, 0 for none. Without it, the current deployment's.
    type: int
  state_dir:
    description: Directory of all instances' state.
    type: path
    default: /var/lib/sglang
  lease:
    description: Token of the lease that M(sglang_lease) gave; without one it works only while nobody holds a lease.
    type: str
attributes:
  check_mode:
    support: full
    description: Takes the same path and leaves out the writes.
  diff_mode:
    support: full
    description: Shows which ports are closed before and after.
  idempotent:
    support: full
    description: A chain that is as asked is left alone.
  platform:
    support: full
    description: Linux with nftables.
    platforms: posix
author:
  - Aerie (@aerie)
"""

EXAMPLES = r"""
- name: Refuse new connections
  sglang_traffic:
    state: refused
    port: 30000
    rendezvous_port: 31000
"""

RETURN = r"""
closed:
  description: Ports that are closed to other hosts now, V(rendezvous) and V(refused).
  type: dict
  returned: always
lease:
  description: The option, to tell this run's results from another's.
  type: str
  returned: always
actions:
  description: What was done, or would be done in check mode.
  type: list
  elements: str
  returned: always
"""

from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance import lease_host
from ansible.module_utils.aerie.instance.host_errors import host_error
from ansible.module_utils.aerie.network.traffic_control import TrafficControl
from ansible.module_utils.basic import AnsibleModule


def run(params: dict, *, check: bool) -> dict:
    """One call, under the instance's lease when something may be written."""
    control = TrafficControl(params, check=check)
    token = params["lease"] or ""
    if check:
        return {**control.run(), "lease": token}
    with lease_host.at_work(control.store, token, "sglang_traffic", params["state"]):
        return {**control.run(), "lease": token}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["refused", "admitted", "absent"], "required": True},
            "instance": {"type": "str", "default": "default"},
            "port": {"type": "int"},
            "rendezvous_port": {"type": "int"},
            "state_dir": {"type": "path", "default": "/var/lib/sglang"},
            "lease": {"type": "str"},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**run(module.params, check=module.check_mode))
    except AerieError as error:
        module.fail_json(**error.as_result())
    except OSError as error:
        module.fail_json(**host_error(error).as_result())


if __name__ == "__main__":
    main()
