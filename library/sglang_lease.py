#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Take or give back the lease on an SGLang instance, so that one run at a time changes it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_lease
short_description: Take or give back the lease on an SGLang instance
description:
  - One run at a time may change an instance. It holds the lease from before a deployment is built until the instance
    is accepted, restored or stopped; each step that changes something is given the token and checks it again under a
    lock, so a run that was taken for dead and comes back does no harm.
  - The action plugin of the same name says who asks (the process C(ansible-playbook), its machine and start time). It
    also looks whether an owner on its own machine is dead; then the lease is taken over at once, after a module of
    that run that still works on the host has ended.
  - The lease of a dead run of another controller is free after it has expired, or with O(override).
  - The lease lasts O(ttl) seconds from the last step; it is counted by the host's boot clock, and from the boot
    after a reboot.
options:
  state:
    description:
      - V(held) takes the lease, or fails and names the owner.
      - V(released) gives it back. A token that is not the lease's any more is no error; somebody else holds it then.
      - V(read) only looks.
    type: str
    choices: [held, released, read]
    default: read
  instance:
    description: Name of the instance.
    type: str
    default: default
  state_dir:
    description: Directory of all instances' state.
    type: path
    default: /var/lib/sglang
  lease:
    description: With O(state=released), the token that O(state=held) returned.
    type: str
  ttl:
    description: Seconds that the lease lasts without a step.
    type: int
    default: 900
  override:
    description: Token of a lease that is to be taken by force, as the error C(lease-held) printed it.
    type: str
  controller:
    description: Who asks. Set by the action plugin.
    type: dict
    default: {}
  dead:
    description: Token of a lease whose owner is dead. Set by the action plugin.
    type: str
attributes:
  check_mode:
    support: full
    description: Looks and takes nothing; the lease of another run is no error then.
  diff_mode:
    support: none
    description: A lease is not part of what an instance is.
  idempotent:
    support: full
    description: The same run gets the same lease again.
  platform:
    support: full
    description: Linux with systemd.
    platforms: posix
author:
  - Aerie (@aerie)
"""

EXAMPLES = r"""
- name: Take the lease
  sglang_lease:
    state: held
  register: lease

- name: Give it back
  sglang_lease:
    state: released
    lease: "{{ lease.token }}"
"""

RETURN = r"""
token:
  description: Token for the steps that follow; empty when none is held by this run.
  type: str
  returned: always
owner:
  description: The lease that is on the host, as a whole; empty when there is none.
  type: dict
  returned: always
why:
  description: "With O(state=held), why it was free: V(free), V(own), V(expired), V(overridden), or that its run died."
  type: str
  returned: always
"""

from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance import lease_host
from ansible.module_utils.aerie.instance.host_errors import host_error
from ansible.module_utils.aerie.instance.lease import Claim
from ansible.module_utils.aerie.instance.state import InstanceStore
from ansible.module_utils.basic import AnsibleModule


def run(params: dict, *, check: bool) -> dict:
    """Carry out one call: the module's options in, its result out. A lease is no change of the instance."""
    store = InstanceStore(params["state_dir"], params["instance"])
    result = {"changed": False, "token": "", "why": "", "owner": {}}
    if params["state"] == "released" and not check:
        lease_host.release(store, params["lease"] or "")
    elif params["state"] == "held" and not check:
        lease, why = lease_host.take(store, Claim.from_mapping(params))
        return {**result, "token": lease.token, "why": why, "owner": lease.as_dict()}
    found = lease_host.read(store)
    return {**result, "owner": found.as_dict() if found else {}}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["held", "released", "read"], "default": "read"},
            "instance": {"type": "str", "default": "default"},
            "state_dir": {"type": "path", "default": "/var/lib/sglang"},
            "lease": {"type": "str"},
            "ttl": {"type": "int", "default": 900},
            "override": {"type": "str"},
            "controller": {"type": "dict", "default": {}},
            "dead": {"type": "str"},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**run(module.params, check=module.check_mode))
    except AerieError as error:
        found = lease_host.read(InstanceStore(module.params["state_dir"], module.params["instance"]))
        module.fail_json(owner=found.as_dict() if found else {}, **error.as_result())
    except OSError as error:
        module.fail_json(owner={}, **host_error(error).as_result())


if __name__ == "__main__":
    main()
