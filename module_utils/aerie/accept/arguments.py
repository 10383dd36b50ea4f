"""Options that the measuring modules share, and what is made of them.

``plugins/doc_fragments/sglang_measure.py`` describes them, by the same three groups.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..instance.keys import client_key
from .client import HttpClient
from .progress import ProgressFile
from .prompts import PromptSet, choose_prompts, read_prompts_file
from .tokenize import TokenizerJob

Spec = dict[str, dict[str, Any]]

SERVER: Spec = {
    "url": {"type": "str", "required": True},
    "api_key": {"type": "str", "no_log": True},
    "api_key_file": {"type": "path", "no_log": False},
    "progress_file": {"type": "path"},
}
TOKENIZER: Spec = {
    "model_path": {"type": "path", "required": True},
    "python": {"type": "path", "required": True},
    "pythonpath": {"type": "str"},
    "user": {"type": "str"},
    "trust_remote_code": {"type": "bool", "default": False},
    "chat_template": {"type": "bool", "default": True},
}
PROMPTS: Spec = {
    "prompts": {"type": "path"},
    "num_prompts": {"type": "int", "default": 24},
    "speculative": {"type": "bool", "default": True},
    "num_steps": {"type": "int"},
    "num_draft_tokens": {"type": "int"},
    "server_pid": {"type": "int"},
}


def client_of(params: dict[str, Any]) -> HttpClient:
    """A client of the server, with its key."""
    return HttpClient(params["url"], client_key(params["api_key"], params["api_key_file"]))


def progress_of(params: dict[str, Any], total: int = 1) -> ProgressFile:
    """Where progress is told."""
    return ProgressFile(Path(params["progress_file"]) if params["progress_file"] else None, total)


def tokenizer_of(params: dict[str, Any], timeout: float) -> TokenizerJob:
    """How prompts become token ids."""
    return TokenizerJob(**{name: params[name] for name in TOKENIZER}, timeout=timeout)


def prompts_of(params: dict[str, Any]) -> PromptSet:
    """The prompts to send."""
    text = read_prompts_file(Path(params["prompts"])) if params["prompts"] else None
    return choose_prompts(params["num_prompts"], text, params["prompts"] or "shipped")


def prompt_facts(prompts: PromptSet, chat_template: bool) -> dict[str, Any]:
    """Which prompts were sent, for a result."""
    return {
        "source": prompts.source,
        "count": len(prompts.prompts),
        "sha256": prompts.sha256,
        "chat_template": chat_template,
    }
