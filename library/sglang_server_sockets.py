#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Refuse a running SGLang instance that listens where nothing asked it to."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_server_sockets
short_description: Refuse a running SGLang instance that listens where nothing asked it to
description:
  - Lists the listening TCP sockets of all processes in the instance's unit and compares them with the current
    deployment. Asked for are the serving port on its address, the rendezvous port, further ports that a server argument
    names, and anything on loopback. A server of several machines chooses further ports itself and is only listed.
  - Where the deployment's unit closes the rendezvous port by nftables, that it really is closed is checked too.
options:
  instance:
    description: Name of the instance.
    type: str
    default: default
  state_dir:
    description: Directory of all instances' state.
    type: path
    default: /var/lib/sglang
attributes:
  check_mode:
    support: full
    description: Changes nothing, and refuses nothing in check mode, since the server may be the old one.
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
- name: Expected sockets only
  sglang_server_sockets:
    instance: default
"""

RETURN = r"""
listening:
  description: Address and port of each listening socket.
  type: list
  elements: str
  returned: always
unexpected:
  description: Those that nothing asked for, with their processes.
  type: list
  elements: str
  returned: always
rendezvous_closed:
  description: Whether nftables closes the rendezvous port to other hosts.
  type: bool
  returned: always
"""

from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance.state import InstanceStore
from ansible.module_utils.aerie.network import sockets
from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str", "default": "default"},
            "state_dir": {"type": "path", "default": "/var/lib/sglang"},
        },
        supports_check_mode=True,
    )
    try:
        found = sockets.look(InstanceStore(module.params["state_dir"], module.params["instance"]))
        if not module.check_mode:
            sockets.check(found)
    except AerieError as error:
        module.fail_json(**error.as_result())
    module.exit_json(changed=False, **found.as_result())


if __name__ == "__main__":
    main()
