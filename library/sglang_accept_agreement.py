#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_accept_agreement
short_description: Keep what debug mode accepted, and require production to agree with it
description:
  - A draft can be wired rightly in eager mode and wrongly inside CUDA graphs. Debug mode runs without them, so it
    leaves what its gate measured on the host, prompt by prompt, and production is compared with that.
  - Only runs of the same release, target, draft (config with the served layer ids, and weights), steps and prompts are
    compared. Where debug mode has left none, the result reads V(not compared).
  - The comparison is paired, prompt by prompt, with a bootstrap and a fixed seed. The result says the smallest
    difference that could have been detected. A comparison that could not have seen O(margin) reads V(inconclusive).
  - A disagreement fails the module, with the finding and what to do in this release.
options:
  state:
    description:
      - V(recorded) keeps the result of debug mode's gate.
      - V(compared) compares a gate's result with it.
      - V(known) returns what debug mode has found out about this draft in this release, before a gate has measured.
    type: str
    choices: [recorded, compared, known]
    default: compared
  record:
    description: File on the host that holds debug mode's records. Its directory must be there.
    type: path
    required: true
  gate:
    description: Result of M(sglang_accept_rate). Needed but with O(state=known).
    type: dict
    default: {}
  release:
    description: The release that serves.
    type: str
    required: true
  target:
    description: Directory of the target model.
    type: path
    required: true
  draft:
    description: Directory of the draft as it is served, so with the layer ids that the deployment wrote.
    type: path
    required: true
  max_new_tokens:
    description: Most tokens of an answer in that gate.
    type: int
    default: 128
  margin:
    description: Accept lengths this far apart count as different.
    type: float
    default: 0.1
  confidence:
    description: Confidence of the two-sided interval.
    type: float
    default: 0.95
  seed:
    description: Seed of the bootstrap.
    type: int
    default: 20250101
  cuda_graphs:
    description: With O(state=recorded), whether debug mode ran with CUDA graphs.
    type: bool
    default: false
  hidden_states:
    description: With O(state=recorded), the result of M(sglang_hidden_states); its verdict is kept too.
    type: dict
    default: {}
  captured:
    description: With O(state=compared), RV(sglang_draft_check#module:captured), to say what the release's rules are.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Reads and compares nothing, since the gate has not measured, and says so.
    support: full
  diff_mode:
    description: There is no difference to show.
    support: none
  platform:
    description: Any host with the models.
    support: full
    platforms: posix
  idempotent:
    description: V(recorded) is changed when the gate measured something else than what is kept.
    support: full
author:
  - The Aerie maintainers
"""

EXAMPLES = r"""
- name: Debug mode leaves what it measured
  sglang_accept_agreement:
    state: recorded
    record: /var/lib/sglang/default/debug-record.json
    gate: "{{ __sglang_server_gate }}"
    release: 0.5.23
    target: /models/target
    draft: /var/lib/sglang/default/current/draft

- name: Production agrees with debug mode
  sglang_accept_agreement:
    record: /var/lib/sglang/default/debug-record.json
    gate: "{{ __sglang_server_gate }}"
    release: 0.5.23
    target: /models/target
    draft: /var/lib/sglang/default/current/draft
"""

RETURN = r"""
state:
  description: V(agrees), V(disagrees), V(inconclusive), V(not compared) or V(recorded).
  type: str
  returned: always, but with O(state=known)
sentence:
  description: The result in words, with its figures. With O(state=known) why there is nothing to compare, or empty.
  type: str
  returned: always
production:
  description: The accept length of the gate, over the prompts that both runs answered.
  type: float
  returned: when compared
debug:
  description: Debug mode's, over the same prompts.
  type: float
  returned: when compared
difference:
  description: Production less debug mode.
  type: float
  returned: when compared
interval:
  description: Interval of the difference.
  type: list
  elements: float
  returned: when compared
detectable:
  description: The smallest true difference that four such comparisons in five would have shown.
  type: float
  returned: when compared
pairs:
  description: Prompts that both runs answered.
  type: int
  returned: when compared
debug_at:
  description: When debug mode measured.
  type: str
  returned: when compared
hidden_states:
  description: Debug mode's verdict on the hidden states (C(passed), C(state), C(verdict)); empty when there is none.
  type: dict
  returned: with O(state=known)
record:
  description: Whether debug mode left a record of this draft in this release, so that there is something to compare.
  type: bool
  returned: with O(state=known)
known_after:
  description: Event after which the result can be known.
  returned: in check mode
  type: str
  sample: start
error:
  description: Code, what failed, evidence and next command.
  returned: on failure
  type: dict
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.aerie.accept.agreement import (
    DISAGREE,
    agreement,
    disagreement,
    identity,
    make_record,
    newest_of,
    with_record,
)
from ansible.module_utils.aerie.accept.model_identity import config_fingerprint, fingerprint
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.files import read_json, write_json
from ansible.module_utils.aerie.instance.host_errors import host_error
from ansible.module_utils.aerie.instance.state import now
from ansible.module_utils.basic import AnsibleModule

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "state": {"type": "str", "choices": ["recorded", "compared", "known"], "default": "compared"},
    "record": {"type": "path", "required": True},
    "gate": {"type": "dict", "default": {}},
    "release": {"type": "str", "required": True},
    "target": {"type": "path", "required": True},
    "draft": {"type": "path", "required": True},
    "max_new_tokens": {"type": "int", "default": 128},
    "margin": {"type": "float", "default": 0.1},
    "confidence": {"type": "float", "default": 0.95},
    "seed": {"type": "int", "default": 20250101},
    "cuda_graphs": {"type": "bool", "default": False},
    "hidden_states": {"type": "dict", "default": {}},
    "captured": {"type": "dict", "default": {}},
}


def run(params: dict[str, Any]) -> tuple[dict[str, Any], AerieError | None]:
    """The module's result, and the error of a disagreement."""
    path, gate = Path(params["record"]), params["gate"]
    who = identity(
        gate,
        release=params["release"],
        target=config_fingerprint(Path(params["target"])),
        draft=fingerprint(Path(params["draft"])),
        max_new_tokens=params["max_new_tokens"],
    )
    kept = read_json(path)
    records = kept["records"] if isinstance(kept, dict) and isinstance(kept.get("records"), list) else []
    if params["state"] == "known":
        record = newest_of(records, who)
        why = "" if record else agreement(records, who, gate).sentence
        hidden = record.get("hidden_states") or {}
        return {"changed": False, "record": bool(record), "sentence": why, "hidden_states": hidden}, None
    if params["state"] == "recorded":
        made = make_record(
            who, gate, now(), cuda_graphs=params["cuda_graphs"], hidden=params["hidden_states"]
        )
        same = any({**one, "at": ""} == {**made, "at": ""} for one in records)
        if not same:
            write_json(path, {"version": 1, "records": with_record(records, made)})
        text = f"kept for production: accept length {made['accept_length']} over {len(made['rows'])} prompts"
        return {"changed": not same, "state": "recorded", "sentence": text}, None
    found = agreement(
        records,
        who,
        gate,
        margin=params["margin"],
        confidence=params["confidence"],
        seed=params["seed"],
    )
    result = {"changed": False, **found.as_result()}
    if found.state != DISAGREE:
        return result, None
    return result, disagreement(found, params["release"], params["captured"])


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    if module.check_mode and module.params["state"] != "known":
        module.exit_json(changed=False, skipped=True, state="not compared", known_after="start")
    try:
        result, error = run(module.params)
    except AerieError as failure:
        module.fail_json(**failure.as_result())
    except OSError as error:
        module.fail_json(**host_error(error).as_result())
    if error is not None:
        module.fail_json(**result, **error.as_result())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
