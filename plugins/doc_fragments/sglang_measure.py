"""What the measuring modules have in common; their argument specs take it from ``aerie/accept/arguments.py``."""

from __future__ import annotations


class ModuleDocFragment:
    """``sglang_measure``: the server. ``.tokenizer``: the release's python. ``.prompts``: what is sent to it."""

    DOCUMENTATION = r"""
options:
  url:
    description: Where the server listens, as V(http://HOST:PORT). No proxy is used.
    type: str
    required: true
  api_key:
    description: The server's API key.
    type: str
  api_key_file:
    description: The deployment's C(config.yaml) on the host, to read the key from when O(api_key) is not given.
    type: path
  progress_file:
    description:
      - A file that gets a line of JSON now and then, with C(text) for a person, and C(done), C(total) and
        C(accept_length) so far where answers are counted. The first line has C(pid) too.
      - When the module is run as a task, its action plugin sets this and shows the lines.
    type: path
attributes:
  check_mode:
    support: full
    description: Sends nothing, since the server may not run yet, and says that the result is known after start.
  diff_mode:
    support: none
    description: It changes nothing.
  idempotent:
    support: full
    description: It measures and is never changed.
  platform:
    support: full
    description: It reads C(/proc).
    platforms: linux
"""

    TOKENIZER = r"""
options:
  model_path:
    description: Directory of the target model, for its tokenizer and chat template.
    type: path
    required: true
  python:
    description: The python of the release. It runs as O(user).
    type: path
    required: true
  pythonpath:
    description: Value of C(PYTHONPATH) for it, such as the deployment's tree.
    type: str
  user:
    description:
      - The service user, whom that python runs as, since a model may bring code of its own.
      - When left out, the user that the task runs as.
    type: str
  trust_remote_code:
    description: Let the tokenizer run code that ships with the model. Set it only when the server does so too.
    type: bool
    default: false
  chat_template:
    description:
      - Put prompts through the model's chat template.
      - V(false) sends raw text. Chat models may then ramble or loop, and the figure is not that of chat traffic.
    type: bool
    default: true
"""

    PROMPTS = r"""
options:
  prompts:
    description:
      - A file on the host with prompts. Either a JSON list (texts, or conversations as lists of C(role)/C(content)
        messages) or one prompt a line.
      - When left out, a set of 40 prompts that ships is used.
    type: path
  num_prompts:
    description: How many prompts are used, taken from the start of the set.
    type: int
    default: 24
  speculative:
    description:
      - Whether the server is meant to speculate. A contradiction is refused.
      - V(false) is for a baseline server. Answers are checked, and the accept figures are null with a reason.
    type: bool
    default: true
  num_steps:
    description: The server's C(--speculative-num-steps). When left out, C(/server_info) is asked. A server that runs
      with another number is refused.
    type: int
  num_draft_tokens:
    description: The server's C(--speculative-num-draft-tokens). When left out, C(/server_info) is asked.
    type: int
  server_pid:
    description:
      - Process id of the server. Its environment is looked at for C(SGLANG_SIMULATE_ACC_LEN), which makes it invent its
        acceptance; nothing else is read from it.
      - When left out, that is not checked.
    type: int
"""
