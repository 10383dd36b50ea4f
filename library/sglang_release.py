#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Install one pristine release of SGLang from a hash-locked list, or look at one that people already have."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_release
short_description: Install one pristine release of SGLang from a hash-locked list
description:
  - Builds a virtual environment aside from a list that locks every package to its sha256 hashes, and switches the
    link C(PREFIX/releases/RELEASE) to it in one step. C(release.json) is written last; a directory without it is what
    a killed run left, is never used, and is removed by the next run.
  - An environment is built again when the lock's packages, the interpreter or O(base_site_packages) change. It is
    never changed in place.
  - Replaced environments are removed down to O(keep), except those that a deployment under O(state_dir) names.
  - The installed C(sglang) is compared with its wheel's C(RECORD); an edited one is refused, or built again with
    O(repair).
  - A second process that builds on the same host is waited for.
  - With O(source=existing) a python that people already have is looked at, and nothing of theirs is written.
options:
  release:
    description: The release of SGLang, which the lock must name.
    type: str
    required: true
  source:
    description: Where packages come from. V(wheelhouse) asks no index at all. V(existing) installs only the tools.
    type: str
    choices: [index, wheelhouse, existing]
    default: index
  state:
    description:
      - V(present) installs what is missing.
      - V(verified) changes nothing and fails when the release is not there as released.
      - V(inspected) changes nothing, compares no file, and says what the host lacks.
      - V(begun) starts what V(present) does and comes back at once; a task with O(begun) watches it to its end. What an
        install does not need can be made meanwhile.
    type: str
    choices: [present, verified, inspected, begun]
    default: present
  begun:
    description: RV(begun) of the task that started the install. Only the action plugin looks at it.
    type: dict
    default: {}
  lock_content:
    description: Text of the hash-locked list. Comments and order do not count. Needed unless O(source=existing).
    type: str
    default: ''
  tools_lock_content:
    description:
      - Text of the hash-locked list of the tools' environment, C(PREFIX/tools). Its pip installs the release. Without
        it, no tools are installed and the release's environment gets a pip of its own.
    type: str
    default: ''
  wheelhouse:
    description:
      - Directory on the host with a file for every locked package. With O(source=existing), where the tools come
        from; without, they come from the index.
    type: path
  extra_wheels:
    description: One more directory on the host to find packages in.
    type: path
  prefix:
    description: Where releases are installed.
    type: path
    default: /opt/sglang
  state_dir:
    description: Where deployments are recorded. The environments that they name are kept.
    type: path
    default: /var/lib/sglang
  python:
    description: The interpreter that environments are made from.
    type: path
    default: /usr/bin/python3
  existing_python:
    description: The python that has sglang installed. Needed with O(source=existing).
    type: path
  base_site_packages:
    description: A site-packages directory of the host that the release's environment also sees, after its own.
    type: path
  environment:
    description: Variables for pip, such as C(https_proxy) and C(PIP_INDEX_URL). Never shown.
    type: dict
    default: {}
  keep:
    description: How many replaced environments stay, newest first.
    type: int
    default: 2
  min_free_mib:
    description:
      - Refuse to build with less room. What a wheelhouse unpacks to is always required; for an index the default is
        20480 MiB for a lock with CUDA libraries and 4096 MiB for any other.
    type: int
  verify:
    description:
      - V(quick) compares the sizes of sglang's files with RECORD, and the hashes of those modified since the install.
      - V(full) compares all hashes (about a second).
    type: str
    choices: [quick, full]
    default: quick
  repair:
    description: Build a tampered release again aside and switch to it.
    type: bool
    default: false
  user:
    description: RV(missing) says whether this user is missing.
    type: str
    default: ''
  group:
    description: RV(missing) says whether this group is missing.
    type: str
    default: ''
  packages:
    description: RV(missing) says which of these Debian packages are missing.
    type: list
    elements: str
    default: []
  timeout:
    description: Longest time for an install, in seconds. Also how long another run is waited for.
    type: int
    default: 3600
  progress_file:
    description: Where to append JSON lines about the progress. The action plugin sets and reads it.
    type: path
attributes:
  check_mode:
    support: full
    description: What an install would make known is returned as C(known after install).
  diff_mode:
    support: full
    description: The links and environments before and after.
  idempotent:
    support: full
    description: Nothing is done when the release is linked, complete and as released.
  platform:
    support: full
    description: Linux.
    platforms: posix
author:
  - Aerie (@aerie)
"""

EXAMPLES = r"""
- name: Install a release from the index
  sglang_release:
    release: 0.5.23
    lock_content: "{{ lookup('ansible.builtin.file', 'sglang-0.5.23-cu13.txt') }}"
    tools_lock_content: "{{ lookup('ansible.builtin.file', 'tools-lock.txt') }}"

- name: Install it on a host without any network
  sglang_release:
    release: 0.5.23
    source: wheelhouse
    wheelhouse: /srv/wheels
    lock_content: "{{ lookup('ansible.builtin.file', 'sglang-0.5.23-cu13.txt') }}"

- name: Look at the one that is already there
  sglang_release:
    release: 0.5.23
    source: existing
    existing_python: /home/me/ml-env/bin/python
"""

RETURN = r"""
release:
  description: The release asked for.
  type: str
  returned: always but with O(state=inspected) and O(state=begun)
  sample: 0.5.23
version:
  description: The version found. Differs from the release only with O(source=existing), by a local or post part.
  type: str
  returned: always but with O(state=inspected)
python:
  description: The python that has the release.
  type: str
  returned: always but with O(state=inspected)
  sample: /opt/sglang/venvs/0.5.23-0123456789ab-1/bin/python
python_version:
  description: Its version, major and minor.
  type: str
  returned: always but with O(state=inspected)
  sample: '3.12'
package_dir:
  description: Directory of the package C(sglang).
  type: str
  returned: always but with O(state=inspected)
dist_info:
  description: Directory of its metadata.
  type: str
  returned: always but with O(state=inspected)
path:
  description: The virtual environment. Empty with O(source=existing).
  type: str
  returned: always but with O(state=inspected)
lock_sha256:
  description: Names what the lock installs. Empty with O(source=existing).
  type: str
  returned: always but with O(state=inspected)
source:
  description: Where the installed release came from.
  type: str
  returned: always but with O(state=inspected)
proof:
  description: V(record) when its files were compared with the wheel's RECORD, V(existing) when they cannot be.
  type: str
  returned: always but with O(state=inspected)
tools_python:
  description: The python of the tools' environment. Empty without O(tools_lock_content).
  type: str
  returned: with O(state=present)
actions:
  description: What was done, or in check mode would be, in order.
  type: list
  elements: str
  returned: always but with O(state=inspected)
installed:
  description: Whether nothing would have to be built or linked.
  type: bool
  returned: with O(state=inspected)
begun:
  description: The install that was started, for O(begun).
  type: dict
  returned: with O(state=begun)
elapsed_s:
  description: Seconds that the install took.
  type: float
  returned: with O(state=present)
missing:
  description: What the host lacks, as C(user), C(group) (booleans) and C(packages) (list).
  type: dict
  returned: with O(state=inspected) and O(state=present)
error:
  description: What failed, as C(code), C(what), C(evidence), C(next).
  type: dict
  returned: failure
"""

import json
import os
import time
from typing import Any

from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance.host_errors import host_error
from ansible.module_utils.aerie.release.host import missing
from ansible.module_utils.aerie.release.install import Request, is_installed, present, verified
from ansible.module_utils.basic import AnsibleModule

# Values this short are no secrets ("1", "off"), and masking them would mask parts of paths and hashes.
SHORTEST_SECRET = 6


def argument_spec() -> dict[str, Any]:
    return {
        "release": {"type": "str", "required": True},
        "source": {"type": "str", "choices": ["index", "wheelhouse", "existing"], "default": "index"},
        "state": {
            "type": "str",
            "choices": ["present", "verified", "inspected", "begun"],
            "default": "present",
        },
        "begun": {"type": "dict", "default": {}},
        "lock_content": {"type": "str", "default": ""},
        "tools_lock_content": {"type": "str", "default": ""},
        "wheelhouse": {"type": "path"},
        "extra_wheels": {"type": "path"},
        "prefix": {"type": "path", "default": "/opt/sglang"},
        "state_dir": {"type": "path", "default": "/var/lib/sglang"},
        "python": {"type": "path", "default": "/usr/bin/python3"},
        "existing_python": {"type": "path"},
        "base_site_packages": {"type": "path"},
        "environment": {"type": "dict", "default": {}, "no_log": True},
        "keep": {"type": "int", "default": 2},
        "min_free_mib": {"type": "int"},
        "verify": {"type": "str", "choices": ["quick", "full"], "default": "quick"},
        "repair": {"type": "bool", "default": False},
        "user": {"type": "str", "default": ""},
        "group": {"type": "str", "default": ""},
        "packages": {"type": "list", "elements": "str", "default": []},
        "timeout": {"type": "int", "default": 3600},
        "progress_file": {"type": "path"},
    }


def request_of(params: dict[str, Any]) -> Request:
    return Request(
        release=params["release"],
        source=params["source"],
        lock_text=params["lock_content"],
        tools_lock_text=params["tools_lock_content"],
        wheelhouse=(params["wheelhouse"] or "") if params["source"] != "index" else "",
        extra_wheels=params["extra_wheels"] or "",
        prefix=params["prefix"],
        state_dir=params["state_dir"],
        python=params["python"],
        existing_python=params["existing_python"] or "",
        base_site_packages=params["base_site_packages"] or "",
        environment={name: str(value) for name, value in params["environment"].items()},
        keep=params["keep"],
        min_free_mib=params["min_free_mib"],
        verify=params["verify"],
        repair=params["repair"],
        timeout=params["timeout"],
    )


class ProgressFile:
    """Appends one JSON line a text; the action plugin reads them while the module runs."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.say("starting")

    def say(self, text: str) -> None:
        if self.path:
            line = json.dumps({"text": text, "at": round(time.time(), 1), "pid": os.getpid()})
            with open(self.path, "a", encoding="utf-8") as stream:  # noqa: PTH123
                stream.write(line + "\n")


def main() -> None:
    module = AnsibleModule(
        argument_spec=argument_spec(),
        required_if=[
            ("source", "wheelhouse", ["wheelhouse"]),
            ("source", "existing", ["existing_python"]),
        ],
        supports_check_mode=True,
    )
    module.no_log_values = {value for value in module.no_log_values if len(value) >= SHORTEST_SECRET}
    # exit_json would add owner, mode and size of whatever `path` names to the result.
    module.add_path_info = lambda result: result
    params = module.params
    try:
        request = request_of(params)
        if params["state"] == "inspected":
            lacking = missing(params["user"], params["group"], params["packages"])
            module.exit_json(changed=False, missing=lacking, installed=is_installed(request))
        if params["state"] == "verified":
            module.exit_json(**verified(request))
        began = time.monotonic()
        result = present(request, check=module.check_mode, say=ProgressFile(params["progress_file"]).say)
        result["elapsed_s"] = round(time.monotonic() - began, 1)
        result["missing"] = missing(params["user"], params["group"], params["packages"])
    except AerieError as error:
        module.fail_json(**error.as_result())
    except OSError as error:
        module.fail_json(**host_error(error).as_result())
    if not module._diff:
        result.pop("diff")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
