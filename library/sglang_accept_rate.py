#!/usr/bin/python
# Apache-2.0 (see LICENSE)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sglang_accept_rate
short_description: Measure and gate the accept length of a running SGLang server
description:
  - Sends chat prompts, each once, to an SGLang server on this host and works out, from the counters in each
    answer, how well its draft model is accepted. With O(min_accept_length) it is a gate.
  - Accept length is tokens gained for each verify, bonus token included. That is C(completion_tokens)
    less 1, divided by C(verify_ct); the first token comes from prefill. Over many requests it is the ratio
    of the sums, with a BCa bootstrap interval over the requests and a fixed seed. The gate compares the
    interval's lower bound with the floor.
  - A draft that is wired wrongly leaves the server healthy and its text right; only the accept length shows
    it.
  - Prompts are put through the model's own chat template by the model's own tokenizer, in a child process of
    the release's python that runs as the service user. The server gets token ids.
  - The module refuses to give a figure when it would mean nothing. That is so for counters that contradict
    each other or the step count, simulated acceptance, lossy accept thresholds, answers that are loops,
    empty or aborted answers, and too few tokens.
  - It works against SGLang 0.4.4.post2 to 0.5.23. Figures that a release does not give are null, with the
    reason in RV(unavailable).
  - Answers are cut at O(max_new_tokens), usually in the middle of a verify. Accept length counts emitted
    tokens only, so each cut answer lowers it by less than one verify's worth. RV(accept_length_uncut) is
    free of that, where the release counts accepted drafts.
version_added: "0.1.0"
author:
  - Aerie contributors
extends_documentation_fragment: [sglang_measure, sglang_measure.tokenizer, sglang_measure.prompts]
options:
  state:
    description:
      - V(measured) measures, and gates with O(min_accept_length).
      - V(prepared) only puts the prompts through the tokenizer and keeps the ids in O(prepared_dir), for a measurement
        that is to come; no server is asked. With O(armed) it waits until that measurement has done so.
      - V(armed) starts the measurement of a server that is still to be started. It puts the prompts through the
        tokenizer, waits until M(sglang_server_wait) tells it that the server has been started, watches it until it has
        fired up, and begins; it passes when C(/health) has answered 200 too. A later task with O(armed) has its result.
        It ends by itself when the run's lease is gone.
    type: str
    choices: [measured, prepared, armed]
    default: measured
  armed:
    description: RV(armed) of the task that started this measurement. It is watched to its end, with the options that it
      was started with.
    type: dict
    default: {}
  run:
    description: With O(state=armed), the run that the measurement belongs to.
    type: dict
    suboptions:
      instance:
        description: Name of the instance.
        type: str
        required: true
      state_dir:
        description: Where the host keeps its state.
        type: path
        required: true
      host:
        description: Address that its server is to listen on.
        type: str
        required: true
      port:
        description: Port that its server is to listen on.
        type: int
        required: true
      lease:
        description: Token of the run's lease.
        type: str
        required: true
      start_timeout:
        description: Seconds that its server may take to start.
        type: int
        required: true
  started_file:
    description: Appears when the server has been started. Set by the action plugin.
    type: path
  prepared_dir:
    description:
      - A directory on the host that keeps token ids of prompts, by everything that decides them. When left out, the
        tokenizer is started each time.
    type: path
  concurrency:
    description: How many requests are in flight at a time.
    type: int
    default: 4
  max_new_tokens:
    description: Most tokens of an answer.
    type: int
    default: 128
  temperature:
    description: Sampling temperature. Only at 0 do two runs compare prompt by prompt.
    type: float
    default: 0.0
  min_tokens:
    description: Fewer tokens than this in all answers together are refused.
    type: int
    default: 500
  min_accept_length:
    description:
      - The floor. The lower bound of the accept length's interval must reach it.
      - It must be at least 1 and below C(num_steps + 1), since a floor belongs to a step count.
    type: float
  checks:
    description:
      - What else is known of the wiring, to explain a low accept length with; C(draft_check) (the result of
        M(sglang_draft_check)), C(hidden_states) (of M(sglang_hidden_states), or the verdict that debug mode left, from
        M(sglang_accept_agreement)) and C(cuda_graphs) (whether this server has them). Each may be left out.
    type: dict
    default: {}
  confidence:
    description: Confidence of the two-sided interval.
    type: float
    default: 0.95
  seed:
    description: Seed of the bootstrap, so that the same answers give the same interval.
    type: int
    default: 20250101
  request_timeout:
    description: Seconds for one request.
    type: float
    default: 120.0
  timeout:
    description: Seconds for all requests together.
    type: float
    default: 600.0
  soak_requests:
    description:
      - How many requests must be answered in all after the gate has passed. The prompts are sent again and again;
        what they give beyond the first time is not measured, but each answer must be whole.
      - V(0) sends the measured ones only. The time for them grows with their number, from O(timeout).
    type: int
    default: 0
  tokenizer_timeout:
    description: Seconds for the tokenizer. The first import of C(transformers) can be slow.
    type: float
    default: 120.0
requirements:
  - Python 3.10 or newer on the host
notes:
  - C(/server_info) shows API keys. Only the speculation fields and the version are taken from it.
  - Output tokens per second include prefill and depend on O(concurrency); they are no benchmark.
"""

EXAMPLES = r"""
- name: Measure the accept length and require at least 1.8
  sglang_accept_rate:
    url: http://127.0.0.1:8000
    model_path: /shared/models/Kimi-K2.5
    python: /opt/sglang/releases/0.5.23/bin/python
    user: sglang
    trust_remote_code: true
    num_steps: 2
    num_draft_tokens: 3
    min_accept_length: 1.8
    server_pid: "{{ __sglang_server_main_pid }}"
  register: __sglang_server_accept

- name: Check a baseline server's answers
  sglang_accept_rate:
    url: http://127.0.0.1:8000
    model_path: /shared/models/Kimi-K2.5
    python: /opt/sglang/releases/0.5.23/bin/python
    user: sglang
    trust_remote_code: true
    speculative: false

- name: Measure on prompts of one's own, more of them for a narrower interval
  sglang_accept_rate:
    url: http://127.0.0.1:8000
    api_key: "{{ vault_sglang_api_key }}"
    model_path: /srv/models/target
    python: /opt/sglang/releases/0.5.23/bin/python
    user: sglang
    prompts: /etc/sglang/prompts.json
    num_prompts: 200
    concurrency: 8
"""

RETURN = r"""
accept_length:
  description: >-
    Tokens gained for each verify, the sum of C(completion_tokens) less 1 over that of C(verify_ct). Null for a
    baseline server.
  returned: when a measurement was made
  type: float
  sample: 2.4019
accept_length_interval:
  description: Lower and upper bound.
  returned: when a measurement was made
  type: list
  elements: float
  sample: [2.2891, 2.5247]
confidence:
  description: Confidence of the interval.
  returned: with speculation
  type: float
  sample: 0.95
interval_method:
  description: How the interval was made.
  returned: with speculation
  type: str
  sample: BCa bootstrap over requests, 2000 resamples, seed 20250101
accept_length_served:
  description: The figure as SGLang serves it, sum of C(completion_tokens) / sum of C(verify_ct).
  returned: when a measurement was made
  type: float
  sample: 2.4207
accept_length_uncut:
  description: 1 + accepted drafts / verifies, before the end of an answer cuts its last verify.
  returned: when a measurement was made
  type: float
  sample: 2.4105
accept_rate:
  description: Accepted drafts / proposed drafts; the bonus token is in neither.
  returned: when a measurement was made
  type: float
  sample: 0.4702
accepted_drafts:
  description: Drafts that the target accepted.
  returned: when a measurement was made
  type: int
proposed_drafts:
  description: Drafts that were proposed, C(num_draft_tokens) less 1 for each verify.
  returned: when a measurement was made
  type: int
acceptance_by_position:
  description: How often each draft position (for a tree, each depth) was accepted.
  returned: when a measurement was made
  type: list
  elements: dict
  contains:
    position:
      description: 1 is the first draft of a verify.
      type: int
    conditional:
      description: Share among the verifies in which the position before was accepted.
      type: float
    unconditional:
      description: Share among all verifies.
      type: float
    verifies:
      description: Verifies in which the position before was accepted.
      type: int
histogram:
  description: Verifies by number of accepted drafts, from 0 upwards.
  returned: when a measurement was made
  type: list
  elements: int
  sample: [120, 85, 210]
verify_ct:
  description: Verifies.
  returned: when a measurement was made
  type: int
tokens:
  description: Output tokens of the answers that were counted.
  returned: when a measurement was made
  type: int
tokens_cut:
  description: Accepted tokens that the end of an answer cut off. Null where the release counts no accepted
    drafts.
  returned: with speculation
  type: int
requests:
  description: Requests that were answered.
  returned: when a measurement was made
  type: int
soak_requests:
  description: Requests that were answered in all when a soak was asked for, otherwise 0.
  returned: when a measurement was made and passed
  type: int
requests_degenerate:
  description: Answers that are loops and were left out; more than a tenth is refused.
  returned: when a measurement was made
  type: int
retractions:
  description: How often the server took a request out of its batch for lack of memory and started it again.
  returned: when a measurement was made
  type: int
output_tokens_per_second:
  description: Output tokens of all requests / seconds.
  returned: when a measurement was made
  type: float
seconds:
  description: From the first request to the last answer.
  returned: when a measurement was made
  type: float
elapsed_s:
  description: Seconds of the whole measurement. With O(state=armed) they count from when the server had fired up to the
    answer of C(/health), whenever somebody looked.
  returned: when a measurement was made
  type: float
rows:
  description: One small record for each request. Hashes name prompt and output across runs.
  returned: when a measurement was made
  type: list
  elements: dict
  sample:
    - index: 0
      prompt_tokens: 21
      completion_tokens: 128
      verify_ct: 53
      accepted_drafts: 75
      accept_length: 2.3962
      finish: length
      seconds: 1.52
      degenerate: null
      output_sha256: 1f0c9b7ad2a4e6c1
      prompt_sha256: 8a3c51f0e97b2d44
prompt_set:
  description: Which prompts were sent.
  returned: when a measurement was made
  type: dict
  contains:
    source:
      description: V(shipped), or the file.
      type: str
    count:
      description: Prompts sent.
      type: int
    sha256:
      description: Hash over the prompts sent. Only runs with the same hash compare.
      type: str
    chat_template:
      description: Whether the model's chat template was used.
      type: bool
server:
  description: What the server says about itself, C(release), C(algorithm), C(num_steps),
    C(num_draft_tokens), C(topk).
  returned: when a measurement was made
  type: dict
min_accept_length:
  description: The floor that was applied, or null.
  returned: when a measurement was made
  type: float
armed:
  description: Where the measurement that waits is found again, for O(armed) and for M(sglang_server_wait).
  returned: with O(state=armed)
  type: dict
passed:
  description: Whether everything that was asked for held. Null in check mode.
  returned: always, except when a measurement was refused
  type: bool
reasons:
  description: Why it passed or not, in words.
  returned: always, except when a measurement was refused
  type: list
  elements: str
unavailable:
  description: Reason for each figure that is null and for each check that could not be made.
  returned: when a measurement was made
  type: dict
  sample:
    accept_length_uncut: the release counts no accepted drafts
derived:
  description: How figures were worked out for which the release has no counter.
  returned: when a measurement was made
  type: dict
known_after:
  description: Event after which the result can be known.
  returned: in check mode
  type: str
  sample: start
error:
  description: What failed, with C(code), C(what), C(evidence) and C(next).
  returned: on failure
  type: dict
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.module_utils.aerie.accept.arguments import (
    PROMPTS,
    SERVER,
    TOKENIZER,
    progress_of,
    prompt_facts,
    prompts_of,
    tokenizer_of,
)
from ansible.module_utils.aerie.accept.client import HttpClient
from ansible.module_utils.aerie.accept.options import MeasureOptions
from ansible.module_utils.aerie.accept.prepared import token_ids
from ansible.module_utils.aerie.accept.prompts import PromptSet, prompt_sha256
from ansible.module_utils.aerie.accept.run import Refused, inspect_server, measure
from ansible.module_utils.aerie.accept.server import check_environment
from ansible.module_utils.aerie.accept.tokenize import TokenizerJob
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance.keys import client_key
from ansible.module_utils.basic import AnsibleModule

ARGUMENTS: dict[str, dict[str, Any]] = {
    **SERVER,
    **TOKENIZER,
    **PROMPTS,
    "state": {"type": "str", "choices": ["measured", "prepared", "armed"], "default": "measured"},
    "armed": {"type": "dict", "default": {}},
    "run": {
        "type": "dict",
        "options": {
            "instance": {"type": "str", "required": True},
            "state_dir": {"type": "path", "required": True},
            "host": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "lease": {"type": "str", "required": True},
            "start_timeout": {"type": "int", "required": True},
        },
    },
    "started_file": {"type": "path"},
    "prepared_dir": {"type": "path"},
    "concurrency": {"type": "int", "default": 4},
    "max_new_tokens": {"type": "int", "default": 128},
    "temperature": {"type": "float", "default": 0.0},
    "min_tokens": {"type": "int", "default": 500},
    "min_accept_length": {"type": "float"},
    "checks": {"type": "dict", "default": {}},
    "confidence": {"type": "float", "default": 0.95},
    "seed": {"type": "int", "default": 20250101},
    "request_timeout": {"type": "float", "default": 120.0},
    "timeout": {"type": "float", "default": 600.0},
    "soak_requests": {"type": "int", "default": 0},
    "tokenizer_timeout": {"type": "float", "default": 120.0},
}

MEASURE_OPTIONS = (
    "num_prompts",
    "concurrency",
    "max_new_tokens",
    "temperature",
    "min_tokens",
    "num_steps",
    "num_draft_tokens",
    "min_accept_length",
    "checks",
    "confidence",
    "seed",
    "request_timeout",
    "timeout",
    "speculative",
    "soak_requests",
)


# How far an armed measurement is (plugins/action/sglang_accept_rate.py, sglang_server_wait.py).
PREPARED, READY = "prepared", "ready"
TOKENIZING = "putting {} prompts through the model's tokenizer"


def run(params: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """The module's result; raises `AerieError` or `Refused`."""
    options = MeasureOptions(**{name: params[name] for name in MEASURE_OPTIONS})
    options.check()
    if check_mode:
        return {
            "skipped": True,
            "known_after": "start",
            "passed": None,
            "reasons": ["the accept length is known after start: check mode sends no request"],
        }
    prompts = prompts_of(params)
    job = tokenizer_of(params, params["tokenizer_timeout"])
    kept_in = Path(params["prepared_dir"]) if params["prepared_dir"] else None
    if params["state"] == "prepared":
        count = len(token_ids(job, prompts, kept_in))
        return {"passed": None, "reasons": [f"{count} prompts are token ids now; nothing was measured"]}
    progress = progress_of(params, len(prompts.prompts))
    server_pid, ids = params["server_pid"], None
    healthy: Callable[[], object] = lambda: None  # noqa: E731
    if params["state"] == "armed":
        progress.begin("")  # only says which process this is
        ids = token_ids(job, prompts, kept_in)
        progress.reached(PREPARED)
        server_pid, soak, healthy = await_server(params, progress.say)
        progress.reached(READY)
        options = replace(options, soak_requests=max(options.soak_requests, soak))
    began = time.monotonic()
    client = HttpClient(params["url"], client_key(params["api_key"], params["api_key_file"]))
    if server_pid is not None and options.speculative:
        check_environment(server_pid)
    settings = inspect_server(client, options)  # before the tokenizer, whose import takes seconds
    progress.begin(
        f"asking {len(prompts.prompts)} prompts" if ids else TOKENIZING.format(len(prompts.prompts))
    )
    ids = ids or token_ids(job, prompts, kept_in)
    try:
        figures: dict[str, Any] = measure(client, ids, options, settings, progress)
    except Refused as refused:
        complete(refused.figures, prompts, job, began)
        raise
    healthy()
    complete(figures, prompts, job, began)
    if server_pid is None and options.speculative:
        figures["unavailable"]["simulated_acceptance"] = "no server_pid was given, so it was not checked"
    return figures


def await_server(params: dict[str, Any], say: Callable[[str], None]) -> tuple[int, int, Callable[[], object]]:
    """The main pid of the server once it serves, the requests that its start asks for in all (0: none more), and what
    waits for the answer of its /health."""
    from ansible.module_utils.aerie.accept.armed import Run
    from ansible.module_utils.aerie.instance.state import InstanceStore

    run = params["run"]
    store = InstanceStore(run["state_dir"], run["instance"])
    of = Run(
        store, run["host"], run["port"], run["lease"], run["start_timeout"], Path(params["started_file"])
    )
    server_pid, healthy = of.await_server(say)
    return server_pid, store.load().soak, healthy


def complete(figures: dict[str, Any], prompts: PromptSet, job: TokenizerJob, began: float) -> None:
    """Say how long it took, which prompts were sent, and name each row's."""
    figures["elapsed_s"] = round(time.monotonic() - began, 1)
    figures["prompt_set"] = prompt_facts(prompts, job.chat_template)
    for row in figures["rows"]:
        row["prompt_sha256"] = prompt_sha256(prompts.prompts[row["index"]])[:16]
    if not job.chat_template:
        figures["reasons"].append("prompts were sent as raw text, not through the model's chat template")


def main() -> None:
    needed = [("state", "armed", ["started_file", "run"])]
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True, required_if=needed)
    try:
        result = run(module.params, module.check_mode)
    except Refused as refused:
        module.fail_json(changed=False, **refused.figures, **refused.error.as_result())
    except AerieError as error:
        module.fail_json(changed=False, **error.as_result())
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
