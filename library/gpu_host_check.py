#!/usr/bin/python
"""Ansible module: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_host_check
short_description: Check a GPU host before it is trusted, and say what it is
description:
  - Reads the driver, its GPUs, their health and topology, and the host around them, and judges them in one call.
  - Every problem has a stable code, evidence and the next command. The module fails when there is one; what is only
    worth a look is returned as RV(cautions) and shown as a warning.
  - Only looks. It installs, changes and resets nothing, and runs the same in check mode.
  - Runs under any Python 3 of the host; pynvml is found in O(tools_dir). On a host without the driver, and with none
    expected, pynvml is not needed. In check mode a host without pynvml is C(known after install).
options:
  expected_count:
    description: Number of GPUs; V(0) for a host without. Not checked when left out.
    type: int
  expected_model:
    description: Glob that every GPU's name matches, without regard to case. A plain word may stand anywhere in it.
    type: str
  expected_memory_mib:
    description: MiB that every GPU has at least.
    type: int
  min_shm_mib:
    description: MiB that C(/dev/shm) has at least. V(0) does not check it.
    type: int
    default: 1024
  lock_content:
    description: Text of the release's hash-locked list. Its CUDA decides how new the driver must be.
    type: str
    default: ''
  cuda_major:
    description: CUDA major version that the driver must run, instead of the one found in O(lock_content).
    type: int
  driver_version:
    description: Exact version that must be loaded.
    type: str
  install_driver:
    description:
      - The caller installs O(driver_version) when it is not loaded. Then the module does not fail for a driver that is
        missing or another one, but returns RV(install_driver) true, and nothing else is judged.
    type: bool
    default: false
  environment:
    description: The host's default NCCL and Gloo environment of every server.
    type: dict
    default: {}
  instance_environment:
    description: An instance's own environment, which wins over O(environment).
    type: dict
    default: {}
  required_env:
    description:
      - Variables that every server process on this host must carry, with their values. null means set to anything.
      - Looked for in every loaded unit C(sglang-*.service) and in its main process.
    type: dict
    default: {}
  verify_env:
    description: A server that lacks one of O(required_env) is a problem, not a caution.
    type: bool
    default: false
  gpus:
    description:
      - GPUs of an instance, each an index, C(index:instance) or a UUID. Translated into RV(cuda_visible_devices).
      - All when left out.
    type: list
    elements: str
  tensor_parallel_size:
    description: Tensor parallel size of the instance. Above 1 a GPU in MIG mode is a problem.
    type: int
    default: 1
  tolerate:
    description: Codes of problems that shall only be cautions on this host.
    type: list
    elements: str
    default: []
  service_user:
    description: User of the servers. The file C(.nccl.conf) in its home is read.
    type: str
  tools_dir:
    description: Virtual environment with nvidia-ml-py, for a Python that has none itself.
    type: path
    default: /opt/sglang/tools
attributes:
  check_mode:
    description: Reads and judges the same.
    support: full
  diff_mode:
    description: Changes nothing, so there is no difference to show.
    support: none
  platform:
    description: Linux with systemd.
    support: full
    platforms: posix
  idempotent:
    description: Never changes anything.
    support: full
author:
  - The Aerie maintainers
"""

EXAMPLES = r"""
- name: Eight H200 with their fabric, for a release of CUDA 13
  gpu_host_check:
    expected_count: 8
    expected_model: H200
    cuda_major: 13
    environment:
      NCCL_SOCKET_IFNAME: "=eth0"
  become: true

- name: A host that serves from its processors
  gpu_host_check:
    expected_count: 0

- name: GPUs by UUID, for a server that takes indices only
  gpu_host_check:
    gpus: ["GPU-61d576b4-233a-1238-6b69-11bbcbfbd5b4"]
  register: devices
"""

RETURN = r"""
problems:
  description: What makes the host unfit; the module fails when there is one.
  returned: always
  type: list
  elements: dict
  contains:
    code: {description: Stable code., type: str}
    what: {description: What is wrong., type: str}
    evidence: {description: One line an item., type: list, elements: str}
    next: {description: What to type or change., type: str}
cautions:
  description: What is worth a look, in the same form.
  returned: always
  type: list
  elements: dict
driver:
  description: The driver; null when there is none.
  returned: always
  type: dict
  contains:
    version: {description: Version of the driver., type: str}
    nvml_version: {description: Version of its library., type: str}
    cuda: {description: Newest CUDA that it supports., type: str}
    kernel_module: {description: Version of the loaded kernel module., type: str}
    library: {description: File of the library., type: str}
gpus:
  description: The GPUs by index.
  returned: always
  type: list
  elements: dict
  contains:
    index: {description: Index., type: int}
    uuid: {description: UUID., type: str}
    name: {description: Model., type: str}
    pci: {description: PCI address., type: str}
    memory_mib: {description: Memory., type: int}
    compute_capability: {description: "Such as V(9.0).", type: str}
    numa: {description: NUMA node; null where the machine does not say., type: int}
    mig: {description: Whether it is in MIG mode., type: bool}
    instances: {description: Its MIG instances with index UUID and name., type: list, elements: dict}
    ecc_uncorrected: {description: Uncorrectable errors since the driver was loaded., type: int}
    ecc_uncorrected_lifetime: {description: Uncorrectable errors ever., type: int}
    rows_remapped: {description: Memory rows replaced so far., type: int}
    remap_pending: {description: Whether a row waits for a reset., type: bool}
    remap_failed: {description: Whether a row could not be replaced., type: bool}
    nvlinks_up: {description: NVLinks that are up., type: int}
    nvlinks_down: {description: NVLinks that are down., type: int}
    fabric: {description: State of its NVLink fabric; null without one., type: str}
    fabric_error: {description: What joining the fabric failed with., type: str}
    recovery: {description: What the driver wants done to it., type: str}
    lost: {description: Whether the driver has lost it., type: bool}
    unreadable: {description: What could not be read., type: list, elements: str}
topology:
  description: How each pair of GPUs is connected.
  returned: always
  type: list
  elements: dict
  contains:
    a: {description: Index of one GPU., type: int}
    b: {description: Index of the other., type: int}
    path: {description: "V(NV18) (18 NVLinks) or a PCIe path, as C(nvidia-smi topo -m) writes it.", type: str}
    nvlinks: {description: Number of NVLinks., type: int}
    pcie: {description: The PCIe path., type: str}
    p2p: {description: Whether direct reads work., type: bool}
    same_numa: {description: Whether both are on one NUMA node., type: bool}
host:
  description: >-
    The host around the GPUs: C(pci_gpus), C(nvswitches), C(fabric_manager), C(kernel_log) (which log was read),
    C(shm_total_mib), C(shm_free_mib), C(nr_open), C(pid_max), C(max_map_count), C(interfaces), C(nccl_files).
  returned: always
  type: dict
xids:
  description: GPU faults in the kernel log since the driver was loaded, with C(number), C(pci), C(line), C(fatal).
  returned: always
  type: list
  elements: dict
install_driver:
  description: Whether the caller shall install O(driver_version).
  returned: always
  type: bool
cuda_visible_devices:
  description: Indices for CUDA_VISIBLE_DEVICES; null when no GPUs were named and none are needed.
  returned: always
  type: str
error:
  description: The first problem.
  returned: on failure
  type: dict
"""

from typing import Any

from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.gpu_host.report import Options, read_driver, report
from ansible.module_utils.aerie.gpu_host.system import read_host
from ansible.module_utils.basic import AnsibleModule

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "expected_count": {"type": "int"},
    "expected_model": {"type": "str"},
    "expected_memory_mib": {"type": "int"},
    "min_shm_mib": {"type": "int", "default": 1024},
    "lock_content": {"type": "str", "default": ""},
    "cuda_major": {"type": "int"},
    "driver_version": {"type": "str"},
    "install_driver": {"type": "bool", "default": False},
    "environment": {"type": "dict", "default": {}},
    "instance_environment": {"type": "dict", "default": {}},
    "required_env": {"type": "dict", "default": {}},
    "verify_env": {"type": "bool", "default": False},
    "gpus": {"type": "list", "elements": "str"},
    "tensor_parallel_size": {"type": "int", "default": 1},
    "tolerate": {"type": "list", "elements": "str", "default": []},
    "service_user": {"type": "str"},
    "tools_dir": {"type": "path", "default": "/opt/sglang/tools"},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        options = Options.from_params(module.params)
        reading = read_driver(options, check_mode=module.check_mode)
        host = read_host(
            service_user=options.service_user,
            with_units=bool(options.required_env),
            conf_file=options.server_environment.get("NCCL_CONF_FILE"),
        )
        answer = report(options, reading, host)
    except AerieError as error:
        module.fail_json(**error.as_result())
    if answer.problems and not answer.install_driver:
        module.fail_json(msg=answer.message(), error=answer.problems[0].as_result(), **answer.as_result())
    for caution in answer.cautions:
        module.warn(caution.error.message())
    module.exit_json(changed=False, msg=answer.message(), **answer.as_result())


if __name__ == "__main__":
    main()
