#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Make an SGLang tree equal to its release plus a list of source patches."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_source_patch
short_description: Make an SGLang tree equal to its release plus a list of source patches
description:
  - The wanted tree is the pristine release plus the patches, in order; the module makes reality equal that. Applying,
    changing and reverting are the same thing, and a second call changes nothing.
  - A patch names its place by class, function and statement, found in the syntax tree exactly once, or is a plain
    unified diff. What a release has already, or is not for, is left alone.
  - Pristine is proven by the wheel's C(RECORD), by git in a source checkout, or by the first sight of a file. A file
    that is neither pristine nor Aerie's own work is never overwritten; the error shows what was changed in it.
  - All files are computed and compiled first, then all are replaced or none. A kill leaves each file wholly old or
    wholly new, and the next call finishes. Owner, mode and extended attributes stay; byte-code of another text never
    runs.
  - While a file is patched, the directory C(.aerie-patches) beside the package holds what it was. Reverting needs no
    network and leaves no byte behind.
  - A tree that a running server imports from is refused.
options:
  site_packages:
    description: Directory on the host that holds the package C(sglang), with its dist-info where there is one.
    type: path
    required: true
  state:
    description: V(applied) for the pristine tree plus the patches, V(pristine) for none.
    type: str
    choices: [applied, pristine]
    default: applied
  patches:
    description: Sets (V(fixes), V(debug), V(profile), V(own)) or names of entries. Entries keep the catalogue's order.
    type: list
    elements: str
    default: [fixes]
  own:
    description:
      - Entries of one's own, in the catalogue's form, or C(name), C(purpose) and C(diff) with a plain unified diff.
        An entry without a C(set) is in V(own).
    type: list
    elements: dict
    default: []
  catalogue:
    description: YAML file or directory of entries on the controller. Without it, those of the role C(sglang_patches).
    type: path
  entries:
    description:
      - The entries themselves, in place of O(patches), O(own) and O(catalogue). The controller's part of this module
        fills it in.
    type: list
    elements: dict
  release:
    description: The release in the tree, where nothing in it says so.
    type: str
  verify:
    description:
      - What else is compared with the release. V(touched) nothing but the patched files; V(tree) every file of the
        package, where it has a C(RECORD). That takes a second or so. Nothing is refused for it, only said.
    type: str
    choices: [touched, tree]
    default: touched
attributes:
  check_mode:
    support: full
    description: Takes the same path, compiling included, and leaves out the writes.
  diff_mode:
    support: full
    description: Shows a unified diff of every file.
  idempotent:
    support: full
    description: A second call with the same options changes nothing.
  platform:
    support: full
    description: Linux.
    platforms: posix
author:
  - Aerie (@aerie)
"""

EXAMPLES = r"""
- name: Instrument an install of one's own
  sglang_source_patch:
    site_packages: /home/me/ml-env/lib/python3.11/site-packages
    patches: [fixes, debug]

- name: Take every patch out again
  sglang_source_patch:
    site_packages: /home/me/ml-env/lib/python3.11/site-packages
    state: pristine
"""

RETURN = r"""
release:
  description: The release in the tree.
  type: str
  returned: success
proof:
  description: "What proves a file pristine: V(RECORD), V(git) or V(first seen)."
  type: str
  returned: success
tree:
  description: "What the tree is: V(pristine), V(pristine + fixes: …), or the patches by set."
  type: str
  returned: success
files:
  description: >-
    Per file V(path), sha256 V(before) and V(after) (empty: not there), V(changed), and V(patches): what became of each,
    V(applied), V(already_upstream), V(not_applicable) or V(removed).
  type: list
  elements: dict
  returned: success
others:
  description: With O(verify=tree), files that are not as released and not Aerie's work, a line each.
  type: list
  elements: str
  returned: success
entries:
  description: The entries that are applied, as V(name), V(set) and V(sha256).
  type: list
  elements: dict
  returned: success
messages:
  description: The same for people, a line for each file and patch; the last one says what the tree is.
  type: list
  elements: str
  returned: success
elapsed_s:
  description: Seconds that it took on the host.
  type: float
  returned: success
error:
  description: What failed, as C(code), C(what), C(evidence), C(next).
  type: dict
  returned: failure
"""

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.patch import site as patch_site
from ansible.module_utils.aerie.patch import tree as patch_tree
from ansible.module_utils.aerie.patch.entry import parse_entries
from ansible.module_utils.basic import AnsibleModule


def patched(params: dict[str, Any], *, check: bool, diff: bool) -> dict[str, Any]:
    began = time.monotonic()
    site = Path(params["site_packages"])
    release = params["release"] or patch_site.release_of(site)
    entries = parse_entries(params["entries"] or []) if params["state"] == "applied" else []
    result = patch_tree.apply(
        site, release, entries, check=check, diff=diff, guard=lambda: patch_site.check_unused(site)
    ).as_dict()
    others = patch_tree.changed_by_others(site) if params["verify"] == "tree" and not check else []
    tree = result["tree"] + (f" + {len(others)} files changed by others" if others else "")
    return {
        **result,
        "tree": tree,
        "others": others,
        "messages": [*result["messages"], *(f"[!!] {one}" for one in others), tree],
        "diff": {"prepared": result["diff"]},
        "elapsed_s": round(time.monotonic() - began, 3),
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "site_packages": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["applied", "pristine"], "default": "applied"},
            "patches": {"type": "list", "elements": "str", "default": ["fixes"]},
            "own": {"type": "list", "elements": "dict", "default": []},
            "catalogue": {"type": "path"},
            "entries": {"type": "list", "elements": "dict"},
            "release": {"type": "str"},
            "verify": {"type": "str", "choices": ["touched", "tree"], "default": "touched"},
        },
        supports_check_mode=True,
    )
    try:
        result = patched(module.params, check=module.check_mode, diff=module._diff)
    except AerieError as error:
        module.fail_json(**error.as_result())
    if not module._diff:
        result.pop("diff")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
