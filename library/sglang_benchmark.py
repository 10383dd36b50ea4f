#!/usr/bin/python
# Apache-2.0 (see LICENSE)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sglang_benchmark
short_description: Measure speed and acceptance of a running SGLang server
description:
  - Measures a server on this host at one or more batch sizes. The load is made by SGLang's own
    C(bench_serving), as it is in the release; per-request times come back, so that intervals and paired
    comparisons can be made of them.
  - Before the load the same prompts are sent once for the counters in their answers (accept length,
    acceptance by position). That pass is the warm-up too, and is in no speed figure. C(bench_serving) sends
    a short warm-up of its own besides, and empties the prefix cache after it.
  - Where the server has a key for administrators, C(/flush_cache) is asked with that one.
  - C(bench_serving) runs under the release's python as the service user, without a GPU in sight, since its
    tokenizer may be code that ships with the model. The API key reaches it through a pipe and is on no
    command line.
  - One load at a time. What a killed run left behind goes on by itself, and is waited for.
  - Prompts are sent in the same order each time, whole rounds of the set, so that two runs can be compared
    prompt by prompt.
version_added: "0.2.0"
author:
  - Aerie contributors
extends_documentation_fragment: [sglang_measure, sglang_measure.tokenizer, sglang_measure.prompts]
options:
  batch_sizes:
    description: How many requests are in flight at a time, one measurement each.
    type: list
    elements: int
    default: [1]
  max_new_tokens:
    description: Most tokens of an answer. Answers end by themselves where the model ends them.
    type: int
    default: 256
  flush_cache:
    description: Empty the server's prefix cache before each batch size.
    type: bool
    default: true
  least_seconds:
    description:
      - Seconds that the load at each batch size lasts at least. A load that was over sooner is done again with
        more rounds of the prompts, up to 10000 requests, and only the last one is counted. Rounds after the first find
        their prompts in the prefix cache, here as at large batch sizes.
      - On an H200 machine one server ran for a second at a time at 1 or at 1.5 times its speed, so that loads of half
        a second differed by a third.
    type: float
    default: 0.0
  request_timeout:
    description: Seconds for one request of the acceptance pass.
    type: float
    default: 300.0
  timeout:
    description: Seconds for everything.
    type: float
    default: 3600.0
requirements:
  - Python 3.10 or newer on the host
notes:
  - Command line and result file of C(bench_serving) were read in SGLang 0.5.23, which was run, and in part in 0.5.9 and
    0.5.12; 0.5.17 to 0.5.22 were searched for their names.
"""

EXAMPLES = r"""
- name: Measure at batch 1 and 8
  sglang_benchmark:
    url: http://127.0.0.1:8000
    model_path: /shared/models/Kimi-K2.5
    python: /opt/sglang/releases/0.5.23/bin/python
    user: sglang
    trust_remote_code: true
    batch_sizes: [1, 8]
    num_steps: 2
    num_draft_tokens: 3
  register: speed

- name: Measure the same without speculation
  sglang_benchmark:
    url: http://127.0.0.1:8000
    model_path: /shared/models/Kimi-K2.5
    python: /opt/sglang/releases/0.5.23/bin/python
    user: sglang
    trust_remote_code: true
    batch_sizes: [1, 8]
    speculative: false
"""

RETURN = r"""
batches:
  description: One entry for each batch size.
  returned: when a measurement was made
  type: list
  elements: dict
  contains:
    batch:
      description: Requests in flight at a time.
      type: int
    requests:
      description: Requests that were sent and answered.
      type: int
    tokens:
      description: Output tokens.
      type: int
    duration_s:
      description: Seconds from the first request to the last answer.
      type: float
    concurrency:
      description: Mean number of requests at work.
      type: float
    output_tokens_per_second:
      description: Output tokens by duration, prefill included.
      type: float
    ttft_ms:
      description: Median time to the first token.
      type: float
    itl_ms:
      description: Median over requests of the mean time between tokens.
      type: float
    rows:
      description: One for each request, C(prompt), C(tokens), C(seconds), C(ttft), C(itl) (seconds).
      type: list
      elements: dict
acceptance:
  description: The acceptance pass as M(sglang_accept_rate) returns it. Its rows have a C(histogram).
  returned: when a measurement was made
  type: dict
prompt_set:
  description: Which prompts were sent, with their hash.
  returned: when a measurement was made
  type: dict
load_began:
  description: When the load began and the warm-up was over, in seconds since 1970 of the host's clock.
  returned: when a measurement was made
  type: float
generator:
  description: What made the load, C(module) and C(release).
  returned: when a measurement was made
  type: dict
  sample:
    module: sglang.benchmark.serving
    release: 0.5.23
summary:
  description: The figures in words, a line for each batch size.
  returned: when a measurement was made
  type: list
  elements: str
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

from typing import Any

from ansible.module_utils.aerie.accept.arguments import (
    PROMPTS,
    SERVER,
    TOKENIZER,
    progress_of,
    prompt_facts,
    prompts_of,
)
from ansible.module_utils.aerie.accept.client import HttpClient
from ansible.module_utils.aerie.accept.options import MeasureOptions
from ansible.module_utils.aerie.accept.prompts import prompt_sha256
from ansible.module_utils.aerie.accept.run import inspect_server, measure
from ansible.module_utils.aerie.accept.server import check_environment
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance.keys import admin_key, client_key
from ansible.module_utils.aerie.measure.alone import only_load
from ansible.module_utils.aerie.measure.bench_figures import batch_figures, summary
from ansible.module_utils.aerie.measure.bench_run import BenchJob, check_batches, run_load
from ansible.module_utils.basic import AnsibleModule

ARGUMENTS: dict[str, dict[str, Any]] = {
    **SERVER,
    **TOKENIZER,
    **PROMPTS,
    "batch_sizes": {"type": "list", "elements": "int", "default": [1]},
    "max_new_tokens": {"type": "int", "default": 256},
    "flush_cache": {"type": "bool", "default": True},
    "least_seconds": {"type": "float", "default": 0.0},
    "request_timeout": {"type": "float", "default": 300.0},
    "timeout": {"type": "float", "default": 3600.0},
}


def run(params: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """The module's result; raises `AerieError`."""
    check_batches(params["batch_sizes"])
    options = MeasureOptions(
        num_prompts=params["num_prompts"],
        concurrency=max(params["batch_sizes"]),
        max_new_tokens=params["max_new_tokens"],
        min_tokens=0,
        num_steps=params["num_steps"],
        num_draft_tokens=params["num_draft_tokens"],
        request_timeout=params["request_timeout"],
        timeout=params["timeout"],
        speculative=params["speculative"],
    )
    options.check()
    key = None if check_mode else client_key(params["api_key"], params["api_key_file"])
    client = HttpClient(params["url"], key)
    if check_mode:
        return {"skipped": True, "known_after": "start"}
    prompts = prompts_of(params)
    if params["server_pid"] is not None and options.speculative:
        check_environment(params["server_pid"])
    settings = inspect_server(client, options)
    progress = progress_of(params, len(prompts.prompts))
    progress.begin("loading the release's bench_serving")
    acceptance: dict[str, Any] = {}

    def accept(ids: list[list[int]]) -> None:
        acceptance.update(measure(client, ids, options, settings, progress))

    with only_load(params["url"], params["timeout"], progress.say):
        load = run_load(job(params, key), prompts, accept, progress.say)
    batches = [batch_figures(b["batch"], b["rows"], b["duration"]) for b in load.batches]
    for row in acceptance["rows"]:
        row["prompt"] = row["index"]
        row["prompt_sha256"] = prompt_sha256(prompts.prompts[row["index"]])[:16]
    return {
        "batches": batches,
        "acceptance": acceptance,
        "prompt_set": prompt_facts(prompts, params["chat_template"]),
        "load_began": load.began,
        "generator": {"module": load.module, "release": settings.version},
        "summary": summary(batches, acceptance["accept_length"]),
    }


def job(params: dict[str, Any], key: str | None) -> BenchJob:
    """The load that these options ask for."""
    return BenchJob(
        url=params["url"].rstrip("/"),
        api_key=key,
        admin_key=admin_key(params["api_key"], params["api_key_file"]),
        model_path=params["model_path"],
        python=params["python"],
        batch_sizes=params["batch_sizes"],
        max_new_tokens=params["max_new_tokens"],
        timeout=params["timeout"],
        user=params["user"],
        pythonpath=params["pythonpath"],
        trust_remote_code=params["trust_remote_code"],
        chat_template=params["chat_template"],
        flush_cache=params["flush_cache"],
        least_seconds=params["least_seconds"],
    )


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        result = run(module.params, module.check_mode)
    except AerieError as error:
        module.fail_json(changed=False, **error.as_result())
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
