"""Prompts to token ids, by the model's own tokenizer, in a child process of the release's python.

The child may run code that ships with the model (trust_remote_code); ``release_child`` says how it is shut in.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ..errors import AerieError, ErrorKind
from ..release.child import ChildFailed, ChildJob, Finished, run_child
from .prompts import PromptSet

TOKENIZER_FAILED = ErrorKind(
    "accept-tokenizer-failed",
    "The model's tokenizer could not be loaded or used by the release's python as the service user.",
)
NO_TEMPLATE = ErrorKind(
    "accept-no-chat-template",
    "The model's tokenizer has no chat template. Raw text makes chat models ramble or loop, which moves "
    "the accept length, so it is sent only when asked for.",
)
NEEDS_REMOTE_CODE = ErrorKind(
    "accept-tokenizer-remote-code",
    "The tokenizer is code that ships with the model, and running such code was not allowed.",
)

MARK = "AERIE-TOKEN-IDS "
"""Tokenizers print; the one line that is ours starts with this."""

IDS_OF = r'''
def ids_of(got, tokenizer):
    """Plain ids from what apply_chat_template gives: list, batch of one, mapping, tensor, string."""
    if isinstance(got, str):
        got = tokenizer.encode(got, add_special_tokens=False)
    if hasattr(got, "keys"):
        got = got["input_ids"]
    if hasattr(got, "tolist"):
        got = got.tolist()
    got = list(got)
    if len(got) == 1 and hasattr(got[0], "__iter__"):
        got = list(got[0])
    return [int(i) for i in got]
'''
"""Also for the other children that tokenize (``measure/bench_driver.py``)."""

CHILD = (
    IDS_OF
    + r"""
import json, sys

def main():
    from transformers import AutoTokenizer
    extra = {"trust_remote_code": True} if job["trust_remote_code"] else {}
    tokenizer = AutoTokenizer.from_pretrained(job["model_path"], **extra)
    if job["texts"] is not None:
        return {"ids": [ids_of(tokenizer.encode(t), tokenizer) for t in job["texts"]]}
    ids = []
    for chat in job["conversations"]:
        try:
            got = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True)
        except Exception as error:
            if not getattr(tokenizer, "chat_template", None) and "chat_template" in str(error):
                return {"no_template": str(error)}
            raise
        ids.append(ids_of(got, tokenizer))
    return {"ids": ids}

job = json.load(sys.stdin)
if not job["torch"]:
    sys.modules["torch"] = None  # for transformers it is not installed then
try:
    answer = main()
except Exception as error:
    answer = {"error": type(error).__name__ + ": " + str(error)}
print("\n" + job["mark"] + json.dumps(answer), flush=True)
"""
)


@dataclass(frozen=True)
class TokenizerJob:
    """How to tokenize. ``user`` None: as the user that runs this. ``timeout`` in seconds."""

    python: str
    model_path: str
    user: str | None = None
    pythonpath: str | None = None
    trust_remote_code: bool = False
    chat_template: bool = True
    timeout: float = 120.0


def tokenize(job: TokenizerJob, prompts: PromptSet) -> list[list[int]]:
    """Token ids of every prompt, in order.

    transformers imports torch when it finds it: two thirds of the seconds here, for nothing that a tokenizer of its
    own uses. So it does not find it at first, but where that fails, and for a tokenizer that is code of the model's.
    """
    if not job.trust_remote_code:
        finished = _run(job, prompts, torch=False)
        if {"ids", "no_template"} & set(finished.answer(MARK)):
            return read_child(job, finished, len(prompts.prompts))
    return read_child(job, _run(job, prompts, torch=True), len(prompts.prompts))


def _run(job: TokenizerJob, prompts: PromptSet, *, torch: bool) -> Finished:
    payload = {
        "mark": MARK,
        "torch": torch,
        "model_path": job.model_path,
        "trust_remote_code": job.trust_remote_code,
        "conversations": prompts.conversations() if job.chat_template else None,
        "texts": None if job.chat_template else prompts.texts(),
    }
    how = ChildJob(job.python, job.user, job.pythonpath, job.timeout)
    try:
        return run_child(how, CHILD, json.dumps(payload).encode())
    except ChildFailed as error:
        raise _failed(job, [str(error)]) from error


def read_child(job: TokenizerJob, finished: Finished, count: int) -> list[list[int]]:
    """The ids from what the child printed, or the error that fits."""
    answer = finished.answer(MARK)
    if "no_template" in answer:
        raise NO_TEMPLATE.error(
            f"the tokenizer in {job.model_path} has no chat template",
            evidence=[_short(answer["no_template"])],
            next="put the model's chat_template.jinja beside its tokenizer, or set chat_template: false",
        )
    ids = answer.get("ids")
    if isinstance(ids, list) and len(ids) == count and all(isinstance(i, list) and i for i in ids):
        return ids
    why = str(answer.get("error") or finished.last_words)
    if "trust_remote_code" in why and not job.trust_remote_code:
        raise NEEDS_REMOTE_CODE.error(
            f"the tokenizer in {job.model_path} is code of its own",
            evidence=[_short(why)],
            next="read that code, then set trust_remote_code: true (it runs as the service user)",
        )
    raise _failed(job, [_short(why)])


def _failed(job: TokenizerJob, evidence: list[str]) -> AerieError:
    return TOKENIZER_FAILED.error(
        f"the tokenizer in {job.model_path} could not be used",
        evidence=[*evidence, f"python {job.python}, user {job.user or 'unchanged'}"],
        next="check that the user can read the model's directory and that the python is the release's",
    )


def _short(text: Any) -> str:
    return " ".join(str(text).split())[:400]
