#!/usr/bin/python
"""Ansible module: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_memory_zero
short_description: Prove that GPUs hold nothing, or name every holder
description:
  - Waits until the given GPUs hold no memory and no compute process, and returns as soon as that is true.
  - On failure every holder is named with its pid, user, command line, systemd unit or container, MiB and start time.
  - Memory that cannot be read is unknown and fails; it is never taken for zero.
  - The driver's own reserve is not use. Memory info version 2 of NVML (driver R510 or later) is needed to tell them
    apart; with an older driver the memory is unknown.
  - Only looks. It never ends a process and never resets a GPU.
  - In check mode it looks once, does not wait, and does not fail for GPUs that are in use.
options:
  gpus:
    description:
      - The GPUs to look at, each an index (V(3)), an index and MIG instance (V(3:0)) or a UUID (V(GPU-…), V(MIG-…)).
      - A GPU in MIG mode stands for all its instances.
      - All GPUs of the host when left out. An empty list is an error unless O(expected_count=0), so that a variable
        that came out empty cannot pass as proof.
    type: list
    elements: str
  expected_count:
    description:
      - How many GPUs the driver must show on this host, whatever O(gpus) names. MIG instances are not counted.
      - With V(0) a host without GPUs, driver library or pynvml is fine, and the message says so.
      - When left out, at least one GPU must be there.
    type: int
  timeout:
    description: Longest time to wait, in seconds. V(0) looks once.
    type: float
    default: 60
  poll_interval:
    description: Seconds between two looks, from V(0.01) to V(10).
    type: float
    default: 0.05
  tolerance_mib:
    description:
      - MiB in use that are forgiven on each GPU, only while no process that counts holds it. Always shown.
    type: int
    default: 0
  graphics_processes:
    description:
      - Whether graphics processes (a display server) count as holders. When they do not, the memory that the driver
        attributes to them is not use either.
    type: bool
    default: false
  neighbours:
    description:
      - Units, as globs (V(sglang-b.service)), whose processes may hold the same GPUs; shown, not counted. For small
        instances that share a card, which only a person who sized them all can allow.
      - What such a process uses beyond what the driver attributes to it, about 10 MiB each, needs O(tolerance_mib).
    type: list
    elements: str
    default: []
  tools_dir:
    description: Virtual environment with nvidia-ml-py, for a Python that has none itself.
    type: path
    default: /opt/sglang/tools
requirements:
  - nvidia-ml-py 13 (import name pynvml) in O(tools_dir), which the role sglang_install makes, or for the Python that
    runs the module
attributes:
  check_mode:
    description: Looks once and reports; waits for nothing.
    support: full
  diff_mode:
    description: Changes nothing, so there is no difference to show.
    support: none
  platform:
    description: Linux with the NVIDIA driver.
    support: full
    platforms: posix
  idempotent:
    description: Never changes anything.
    support: full
author:
  - The Aerie maintainers
"""

EXAMPLES = r"""
- name: Wait until the instance's GPUs are free
  gpu_memory_zero:
    gpus: ["0", "1", "2", "3"]
    expected_count: 8
  become: true

- name: Look at every GPU once
  gpu_memory_zero:
    timeout: 0

- name: A host that serves from its processors
  gpu_memory_zero:
    expected_count: 0
"""

RETURN = r"""
zero:
  description:
    - True when every GPU was looked at and holds nothing; also when none is there and none is expected.
    - null in check mode while pynvml is not installed yet.
  returned: always, except when the GPUs could not be looked at
  type: bool
gpus:
  description: The last look, one entry a GPU or MIG instance.
  returned: with RV(zero)
  type: list
  elements: dict
  contains:
    index: {description: Index of the GPU., type: int}
    mig_index: {description: Number of the MIG instance; null outside MIG., type: int}
    uuid: {description: UUID of the GPU or instance., type: str}
    name: {description: Model., type: str}
    state: {description: "V(free), V(held), V(unknown) or V(lost).", type: str}
    total_mib: {description: Memory; null when unknown., type: int}
    used_mib: {description: "Memory in use without the reserve, rounded up; null when unknown.", type: int}
    reserved_mib: {description: The driver's reserve., type: int}
    without_process_mib: {description: Memory in use that no listed process explains., type: int}
    processes: {description: Number of processes that count., type: int}
    problems: {description: What could not be read., type: list, elements: str}
holders:
  description: Every process that counts, on every GPU; empty when RV(zero) is true.
  returned: with RV(zero)
  type: list
  elements: dict
  contains:
    gpu: {description: Index of the GPU., type: int}
    mig_index: {description: Number of the MIG instance., type: int}
    uuid: {description: UUID of the GPU or instance., type: str}
    pid: {description: Process id as NVML shows it., type: int}
    kind: {description: "V(compute), V(mps) or V(graphics).", type: str}
    mib: {description: Memory; null where the driver does not attribute it., type: int}
    visible: {description: Whether the pid is a living process of this pid namespace., type: bool}
    user: {description: Its user., type: str}
    command: {description: "Its command line, values of secret options masked, cut at 240 characters.", type: str}
    unit: {description: Its systemd unit., type: str}
    container: {description: Its container's id or name., type: str}
    runtime: {description: What runs the container., type: str}
    since: {description: "Its start, UTC, ISO 8601.", type: str}
waited_s:
  description: Seconds from the first look to the end of the last one.
  returned: with RV(zero)
  type: float
driver_version:
  description: Version of the driver; null when there is none.
  returned: with RV(zero)
  type: str
error:
  description: Code, what failed, evidence and next command.
  returned: on failure
  type: dict
"""

import time
from typing import Any

from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.gpu.check import Options, check
from ansible.module_utils.basic import AnsibleModule

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "gpus": {"type": "list", "elements": "str"},
    "expected_count": {"type": "int"},
    "timeout": {"type": "float", "default": 60},
    "poll_interval": {"type": "float", "default": 0.05},
    "tolerance_mib": {"type": "int", "default": 0},
    "graphics_processes": {"type": "bool", "default": False},
    "neighbours": {"type": "list", "elements": "str", "default": []},
    "tools_dir": {"type": "path", "default": "/opt/sglang/tools"},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        options = Options.from_params(module.params)
        report = check(options, once=module.check_mode, clock=time.monotonic, sleep=time.sleep)
    except AerieError as error:
        module.fail_json(**error.as_result())
    if report.error is not None:
        module.fail_json(**report.error.as_result(), **report.as_result())
    module.exit_json(changed=False, msg=report.message, **report.as_result())


if __name__ == "__main__":
    main()
