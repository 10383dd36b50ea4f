#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_draft_check
short_description: Judge a draft, its target, a release and the settings before anything is started
description:
  - Reads the C(config.json) and the safetensors headers of a target and an EAGLE-3 draft and says which layers this
    release of SGLang captures for the draft, in eager mode and inside CUDA graphs, and what does not fit together.
  - No weights are loaded (of the draft's tensors only the vocabulary maps C(d2t) and C(t2d) are read), and neither a
    GPU nor SGLang is needed, so that it runs on the controller too.
  - The rules come from the releases' own source (docs/draft-rules.md). With O(site_packages) they are confirmed from
    the installed source by syntax tree; where that says something else, the source is believed and the result says so.
  - Problems fail the module, all of them in one message, each with a code, a reason and a fix.
options:
  target:
    description: Directory of the target model.
    type: path
    required: true
  draft:
    description: Directory of the draft model.
    type: path
    required: true
  release:
    description: SGLang release that serves them, for example V(0.5.23).
    type: str
    required: true
  algorithm:
    description: Speculative algorithm of the server (C(--speculative-algorithm)), in any case.
    type: str
    default: EAGLE3
  cuda_graphs:
    description: Whether the server captures CUDA graphs for decoding.
    type: bool
    default: true
  num_steps:
    description: C(--speculative-num-steps).
    type: int
  eagle_topk:
    description: C(--speculative-eagle-topk).
    type: int
  num_draft_tokens:
    description: C(--speculative-num-draft-tokens).
    type: int
  context_length:
    description: C(--context-length) of the server, in tokens. What the target's config gives when left out.
    type: int
  training_layers:
    description:
      - The layers on whose outputs the draft was trained, counted from 0, in the order in which training joined them,
        for example V([2, 30, 58]).
      - Without them the module can say what is captured, and not whether that is right.
    type: list
    elements: int
  serve_ids:
    description:
      - Which layer ids are judged.
      - With V(config), those in the draft's own config.
      - With V(recommended), RV(recommended_ids), for a deployment that writes them into its own copy of the draft's
        config; the config's where there are none.
    type: str
    choices: [config, recommended]
    default: config
  fixes:
    description:
      - Names of the fixes that are, or will be, applied to the release. V(kimi_k25_set_layers) and
        V(graph_capture_layers) matter here; others are ignored.
    type: list
    elements: str
    default: []
  env:
    description: Environment variables of the server. Only those that change speculation are looked at.
    type: dict
    default: {}
  site_packages:
    description: Directory that holds the C(sglang) package, to confirm the rules from. It is read, never imported.
    type: path
  arguments:
    description:
      - Further server arguments by flag name, as an inventory has them. The context length, the quantizations, the
        acceptance thresholds and whether CUDA graphs are off are taken from them where the option of that name is
        left out; others are ignored.
    type: dict
    default: {}
  quantization:
    description: C(--quantization) of the server.
    type: str
  draft_quantization:
    description: C(--speculative-draft-model-quantization) of the server.
    type: str
  speculative_accept_threshold_single:
    description: C(--speculative-accept-threshold-single) of the server.
    type: float
  speculative_accept_threshold_acc:
    description: C(--speculative-accept-threshold-acc) of the server.
    type: float
  accept:
    description: Codes of problems that are meant so. They become warnings.
    type: list
    elements: str
    default: []
  fail:
    description: Whether problems fail the module. With V(false) they are only returned.
    type: bool
    default: true
attributes:
  check_mode:
    description: Only reads, so check mode does the same.
    support: full
  diff_mode:
    description: Changes nothing, so there is no difference to show.
    support: none
  platform:
    description: Any host that holds the model directories; the controller too.
    support: full
    platforms: posix
  idempotent:
    description: Never changes anything.
    support: full
author:
  - The Aerie maintainers
"""

EXAMPLES = r"""
- name: Judge the pair before the server is touched
  sglang_draft_check:
    target: /models/Kimi-K2.5
    draft: /models/Kimi-K2.5-Eagle3
    release: 0.5.23
    training_layers: [2, 30, 58]
    num_steps: 2
    eagle_topk: 1
    num_draft_tokens: 3

- name: Judge what a deployment serves that writes the right ids into its own copy of the draft's config
  sglang_draft_check:
    target: /models/Kimi-K2.5
    draft: /models/Kimi-K2.5-Eagle3
    release: 0.5.9
    training_layers: [2, 30, 58]
    serve_ids: recommended
    fixes: [kimi_k25_set_layers, graph_capture_layers]
    site_packages: /opt/sglang/releases/0.5.9/lib/python3.11/site-packages

# On the controller, with no GPU and no SGLang:
# ansible localhost -m sglang_draft_check -a "target=/models/t draft=/models/d release=0.5.23 fail=false"
"""

RETURN = r"""
captured:
  description:
    - The layers whose states reach the draft, in the order in which they are joined, in the two notations that are
      mixed up in the field. SGLang captures what enters layer I(i) (the loop index), which is the output of layer
      I(i) - 1.
    - null where nothing is captured, since the target cannot in this release, the algorithm is not EAGLE3, or the
      draft's config switches it off.
  returned: when the configs were read
  type: dict
  contains:
    eager:
      description: Outside of CUDA graphs; the prefill of every server.
      type: dict
      contains:
        loop_index: {description: Loop indices., type: list, elements: int}
        output_of_layer: {description: The same as outputs of layers., type: list, elements: int}
    cuda_graph:
      description: Inside CUDA graphs, whether or not this server has them.
      type: dict
      contains:
        loop_index: {description: Loop indices., type: list, elements: int}
        output_of_layer: {description: The same as outputs of layers., type: list, elements: int}
  sample:
    eager: {loop_index: [3, 31, 59], output_of_layer: [2, 30, 58]}
    cuda_graph: {loop_index: [2, 30, 58], output_of_layer: [1, 29, 57]}
recommended_ids:
  description:
    - The ids to write into C(eagle_config.eagle_aux_hidden_state_layer_ids) so that this release captures
      O(training_layers). null where that cannot be said; RV(recommended_ids_reason) says why.
  returned: when the configs were read
  type: list
  elements: int
  sample: [3, 31, 59]
recommended_ids_reason:
  description: Why there are no recommended ids; empty where there are.
  returned: when the configs were read
  type: str
served_ids:
  description: The ids that were judged; null where none reach the target and its default is captured.
  returned: when the configs were read
  type: list
  elements: int
layer_ids_rule:
  description:
    - How this release reads layer ids for this target, with C(name) and C(meaning); null where it cannot capture.
  returned: when the configs were read
  type: dict
basis:
  description:
    - What each claim rests on, V(rule) (the tables), V(confirmed) (the source at O(site_packages) says the same) or
      V(contradicted) (it says something else, and is believed).
  returned: when the configs were read
  type: dict
  sample: {capture_support: confirmed, layer_ids: confirmed, default_layers: confirmed, cuda_graphs: confirmed}
problems:
  description: What would go wrong.
  returned: when the configs were read
  type: list
  elements: dict
  contains:
    code: {description: "Stable code, to search for and to name in O(accept).", type: str}
    what: {description: What is wrong., type: str}
    why: {description: Why it matters., type: str}
    fix: {description: What to change., type: str}
    source: {description: "Release, PR or file that the claim rests on.", type: str}
notes:
  description:
    - What a person should know; the same parts as RV(problems). Where something can be done about it, a note is shown
      as a warning too.
  returned: when the configs were read
  type: list
  elements: dict
target_architecture:
  description: Architecture of the target.
  returned: when the configs were read
  type: str
target_layers:
  description: Number of layers of the target's language model.
  returned: when the configs were read
  type: int
draft_architecture:
  description: Architecture of the draft.
  returned: when the configs were read
  type: str
target_config_sha256:
  description: sha256 of the target's config.json.
  returned: when the configs were read
  type: str
draft_config_sha256:
  description: sha256 of the draft's config.json.
  returned: when the configs were read
  type: str
error:
  description: Code, what failed, evidence and next command.
  returned: on failure
  type: dict
"""

from typing import Any

from ansible.module_utils.aerie.draft.case import NOTHING_TO_DO, Settings
from ansible.module_utils.aerie.draft.check import check
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.basic import AnsibleModule

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "target": {"type": "path", "required": True},
    "draft": {"type": "path", "required": True},
    "release": {"type": "str", "required": True},
    "algorithm": {"type": "str", "default": "EAGLE3"},
    "cuda_graphs": {"type": "bool", "default": True},
    "num_steps": {"type": "int"},
    "eagle_topk": {"type": "int"},
    "num_draft_tokens": {"type": "int"},
    "context_length": {"type": "int"},
    "training_layers": {"type": "list", "elements": "int"},
    "serve_ids": {"type": "str", "choices": ["config", "recommended"], "default": "config"},
    "fixes": {"type": "list", "elements": "str", "default": []},
    "env": {"type": "dict", "default": {}},
    "site_packages": {"type": "path"},
    "arguments": {"type": "dict", "default": {}},
    "quantization": {"type": "str"},
    "draft_quantization": {"type": "str"},
    "speculative_accept_threshold_single": {"type": "float"},
    "speculative_accept_threshold_acc": {"type": "float"},
    "accept": {"type": "list", "elements": "str", "default": []},
    "fail": {"type": "bool", "default": True},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        report = check(Settings.from_params(module.params))
    except AerieError as error:
        module.fail_json(**error.as_result())
    result = report.as_result()
    for finding in report.warnings:
        # A warning at each run that nobody can do anything about teaches people to read over warnings.
        if finding.fix != NOTHING_TO_DO:
            module.warn(f"{finding.code}: {finding.what}. {finding.fix}")
    error = report.error()
    if error is not None and module.params["fail"]:
        module.fail_json(**error.as_result(), **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
