#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_hidden_states
short_description: Compare the hidden states that a draft gets with those that it was trained on
description:
  - Sends one prompt to a server that runs in debug mode, reads what its probes say about that prompt, and compares the
    states that reached the draft with a reference from the draft's training, segment by segment.
  - The verdict says whether they match within what bfloat16 allows, or else which other state it is, as far as that can
    be told; another layer, the segments in another order, the embedding, the final norm, another rank's shard.
    Naming a layer needs all-layer lines (O(all_layers)).
  - It sees which states are captured in the mode that the server runs in, which is eager mode unless debug mode was
    asked to keep CUDA graphs. What the draft makes of them (the order of its C(fc), its vocabulary map) it does not
    see, unless the reference was recorded from a server (O(state=recorded)) and so holds the output of C(fc) too.
  - A mismatch fails the module with the verdict and what to change.
extends_documentation_fragment: [sglang_measure, sglang_measure.tokenizer]
options:
  state:
    description:
      - V(compared) compares with O(reference).
      - V(recorded) makes O(reference) from the running server, to pin a state that is known to be good.
    type: str
    choices: [compared, recorded]
    default: compared
  probes:
    description:
      - The directory that the probes write to (C(EAGLE3_DEBUG_DIR) of the server). It belongs to O(user), and nobody
        else can write to it.
    type: path
    required: true
  reference:
    description:
      - File on the host with a prompt's token ids and its hidden states, one row a token. C(.safetensors), or
        C(.pt)/C(.ckpt) (read with weights_only, so nothing in it runs), or C(.json) with norms and first values.
        docs/hidden-states.md shows the forms.
      - With O(state=recorded), the C(.safetensors) file to write.
    type: path
    required: true
  python:
    description: The python of the release, which has C(torch). Tensors are read and compared there, as O(user).
  training_layers:
    description:
      - The layers on whose outputs the draft was trained, counted from 0, in the order in which training joined them.
      - When left out, what the reference says, if it does.
    type: list
    elements: int
    default: []
  tolerance:
    description:
      - Largest relative error of a token's state, median over the prompt, that counts as a match.
      - When left out, 0.05 for bfloat16, 0.02 for float16 and 0.01 for float32, the dtype being the server's.
    type: float
  all_layers:
    description: Have the probes write every layer's output too, so that a wrong state can be named.
    type: bool
    default: true
  forwards:
    description: How many forwards of the target the probes speak about. Others than the prompt's may come between.
    type: int
    default: 4
  prompt:
    description: With O(state=recorded), the prompt. A prompt that ships is taken when this and O(prompt_ids) are left
      out.
    type: str
  prompt_ids:
    description: With O(state=recorded), the prompt as token ids.
    type: list
    elements: int
  model_path:
    description: With O(state=recorded) and no O(prompt_ids), the target model, for its tokenizer.
    type: path
    required: false
  timeout:
    description: Seconds for the request, and again for the probes' lines.
    type: float
    default: 120.0
  child_timeout:
    description: Seconds for the release's python, each time. The first import of C(torch) can be slow.
    type: float
    default: 180.0
  result_file:
    description: File on the host to write the result to, as JSON.
    type: path
  page:
    description: File on the controller to write the HTML page to, a relative one below the project. Its directory is
      made. The action plugin does it.
    type: str
  label:
    description: Text that the page shows to say what was compared, for example the instance's name.
    type: str
    default: ""
  release:
    description: The release that serves, for the page.
    type: str
    default: ""
  fail:
    description: Whether a mismatch fails the module. With V(false) it is only returned.
    type: bool
    default: true
attributes:
  diff_mode:
    description: There is no difference to show.
    support: none
  platform:
    description: Any host with the release.
    support: full
    platforms: linux
  idempotent:
    description: A comparison changes nothing. A recorded reference is written when its bytes differ.
    support: full
author:
  - The Aerie maintainers
"""

EXAMPLES = r"""
- name: Compare with what training dumped
  sglang_hidden_states:
    url: http://127.0.0.1:30000
    probes: /var/cache/sglang/default/probes
    reference: /data/reference.safetensors
    training_layers: [2, 30, 58]
    python: /opt/sglang/releases/0.5.23/bin/python
    user: sglang
    page: reports/hidden-states.html

- name: Pin today's known good state
  sglang_hidden_states:
    state: recorded
    url: http://127.0.0.1:30000
    probes: /var/cache/sglang/default/probes
    reference: /data/reference.safetensors
    model_path: /models/Kimi-K2.5
    trust_remote_code: true
    python: /opt/sglang/releases/0.5.23/bin/python
    user: sglang
"""

RETURN = r"""
passed:
  description: Whether every segment matches. Null in check mode.
  type: bool
  returned: always
state:
  description: V(match), V(shifted), V(other-layers), V(permuted), V(embedding), V(final-norm), V(shard),
    V(token-shift), V(width) or V(differs).
  type: str
  returned: when compared
verdict:
  description: The verdict in one sentence.
  type: str
  returned: always
  sample: segment 1 carries the output of layer 1; the draft was trained on the output of layer 2
next:
  description: What to change; empty with a match.
  type: str
  returned: when compared
segments:
  description: A line for each segment.
  type: list
  elements: dict
  returned: when compared
  contains:
    segment: {description: "Its number, from 1.", type: int}
    state: {description: "Like RV(state), for the segment.", type: str}
    sentence: {description: In words., type: str}
    served: {description: "The state that the server captured, by name; null when it could not be named.", type: str}
    trained: {description: "The state that the reference holds, by name.", type: str}
    cosine: {description: "Cosine of a token's state with the reference's, median over the prompt.", type: float}
    norm_ratio: {description: Norm served / norm of the reference., type: float}
    max_difference: {description: Largest difference of a value., type: float}
    error: {description: "Relative error of a token's state, median over the prompt.", type: float}
similarity:
  description: The matrix of the page, with C(states) (rows) and C(columns) of C(name) and C(cosine).
  type: dict
  returned: when compared with all-layer lines
captured_layers:
  description: The layer outputs that the probes say were captured.
  type: list
  elements: int
  returned: when compared or recorded
training_layers:
  description: The layers that were stated, by the option or by the reference.
  type: list
  elements: int
  returned: when compared
reference_layers:
  description: The layers that the reference turned out to hold, where all could be named.
  type: list
  elements: int
  returned: when compared
tolerance:
  description: The tolerance that was applied.
  type: float
  returned: when compared
dtype:
  description: The dtype of the served states.
  type: str
  returned: when compared
prompt_tokens:
  description: Tokens of the prompt.
  type: int
  returned: when compared or recorded
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

import datetime
from pathlib import Path
from typing import Any

from ansible.module_utils.aerie.accept.arguments import (
    SERVER,
    TOKENIZER,
    client_of,
    progress_of,
    tokenizer_of,
)
from ansible.module_utils.aerie.accept.progress import ProgressFile
from ansible.module_utils.aerie.accept.prompts import choose_prompts
from ansible.module_utils.aerie.accept.tokenize import tokenize
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.files import write_atomic, write_json
from ansible.module_utils.aerie.hidden.page import page
from ansible.module_utils.aerie.hidden.result import comparison_result
from ansible.module_utils.aerie.hidden.run import Settings, compare, mismatch, read_reference, record
from ansible.module_utils.aerie.release.child import ChildJob
from ansible.module_utils.basic import AnsibleModule

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    **SERVER,
    **TOKENIZER,
    "state": {"type": "str", "choices": ["compared", "recorded"], "default": "compared"},
    "probes": {"type": "path", "required": True},
    "reference": {"type": "path", "required": True},
    "training_layers": {"type": "list", "elements": "int", "default": []},
    "tolerance": {"type": "float"},
    "all_layers": {"type": "bool", "default": True},
    "forwards": {"type": "int", "default": 4},
    "prompt": {"type": "str"},
    "prompt_ids": {"type": "list", "elements": "int"},
    "model_path": {"type": "path"},
    "timeout": {"type": "float", "default": 120.0},
    "child_timeout": {"type": "float", "default": 180.0},
    "result_file": {"type": "path"},
    "page": {"type": "str"},
    "label": {"type": "str", "default": ""},
    "release": {"type": "str", "default": ""},
    "fail": {"type": "bool", "default": True},
}


def settings_of(params: dict[str, Any]) -> Settings:
    """The core's settings from the module's options."""
    return Settings(
        probes=params["probes"],
        user=params["user"],
        child=ChildJob(params["python"], params["user"], params["pythonpath"], params["child_timeout"]),
        training_layers=tuple(params["training_layers"] or ()),
        tolerance=params["tolerance"],
        all_layers=params["all_layers"],
        forwards=params["forwards"],
        timeout=params["timeout"],
    )


def run_compare(params: dict[str, Any], progress: ProgressFile) -> tuple[dict[str, Any], AerieError | None]:
    """The result, and the error of a mismatch."""
    settings, client = settings_of(params), client_of(params)
    progress.begin("reading the reference")
    reference = read_reference(params["reference"], settings.child)
    progress.begin(f"replaying the reference prompt of {len(reference.ids)} tokens")
    verdict, details = compare(client, reference, params["reference"], settings)
    result = comparison_result(verdict, details)
    facts = {
        "instance": params["label"],
        "release": params["release"],
        "reference": params["reference"],
        "at": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    if params["result_file"]:
        write_json(Path(params["result_file"]), {**facts, **result})
    html = page({**facts, **result}) if params["page"] else ""
    error = None if verdict.matched else mismatch(verdict, params["page"] or "")
    return {"changed": False, **result, **({"page_html": html} if html else {})}, error


def run_record(params: dict[str, Any], progress: ProgressFile) -> dict[str, Any]:
    """Make the reference; changed when its bytes differ from what was there."""
    settings, client = settings_of(params), client_of(params)
    progress.begin("putting the prompt through the model's tokenizer")
    ids = params["prompt_ids"] or _tokenized(params)
    progress.begin(f"sending a prompt of {len(ids)} tokens")
    made, facts = record(client, ids, settings, {"release": params["release"]})
    path = Path(params["reference"])
    changed = not path.is_file() or path.read_bytes() != made
    if changed:
        write_atomic(path, made)
    return {
        "changed": changed,
        "passed": True,
        "verdict": f"recorded {facts['tokens']} tokens of states {facts['shape']} in {path}",
        "captured_layers": facts["training_layers"],
        "prompt_tokens": facts["tokens"],
    }


def _tokenized(params: dict[str, Any]) -> list[int]:
    prompts = choose_prompts(1, params["prompt"].replace("\n", " ") if params["prompt"] else None)
    return tokenize(tokenizer_of(params, params["child_timeout"]), prompts)[0]


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    if module.check_mode:
        module.exit_json(
            changed=False,
            skipped=True,
            passed=None,
            known_after="start",
            verdict="the hidden states are known after start: check mode sends no request",
        )
    if params["state"] == "recorded" and not params["prompt_ids"] and not params["model_path"]:
        module.fail_json(msg="state recorded needs prompt_ids, or model_path for the tokenizer")
    progress = progress_of(params)
    try:
        if params["state"] == "recorded":
            module.exit_json(**run_record(params, progress))
        result, error = run_compare(params, progress)
    except AerieError as failure:
        module.fail_json(changed=False, passed=False, verdict=failure.what, **failure.as_result())
    if error is not None and params["fail"]:
        module.fail_json(**result, **error.as_result())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
