#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Check an inventory alone, before any host is touched. The work is done by the action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_validate
short_description: Check an inventory alone, before any host is touched
description:
  - Runs on the controller and asks no host. Refuses variables with Aerie's prefixes that no role knows, values of the
    wrong type (text where a boolean belongs), and settings that contradict each other.
  - The action plugin of the same name does the work; this file is its documentation.
options:
  roles:
    description: Roles whose argument specs say which variables there are.
    type: list
    elements: str
    required: true
  sweep:
    description: Also refuse settings that cannot be measured against each other, V(tune), or compared at all,
      V(benchmark), or that have no cycle to profile, V(profile).
    type: str
    choices: [tune, benchmark, profile]
attributes:
  action:
    support: full
    description: Runs on the controller.
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
    description: Any controller.
    platforms: posix
author:
  - Aerie (@aerie)
"""

EXAMPLES = r"""
- name: Validate the inventory
  sglang_validate:
    roles: [sglang_install, sglang_server]
"""

RETURN = r"""
checked:
  description: How many variables were checked.
  type: int
  returned: success
"""
