"""Prompts to token ids, by the model's own tokenizer, in a child process of the release's python.

The child may run code that ships with the model (trust_remote_code), so it runs as the service user, with a
small environment of its own, no GPU in sight, no network look-ups and a private temporary directory that is
its home and cache and is removed afterwards.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

from .accept_prompts import PromptSet
from .errors import AerieError, ErrorKind

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
USER_UNUSABLE = ErrorKind(
    "accept-user-unusable", "The tokenizer's user does not exist, or only root could become that user."
)

MARK = "AERIE-TOKEN-IDS "
"""Tokenizers print; the one line that is ours starts with this."""

CHILD = r'''
import json, sys

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
try:
    answer = main()
except Exception as error:
    answer = {"error": type(error).__name__ + ": " + str(error)}
print("\n" + job["mark"] + json.dumps(answer), flush=True)
'''


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
    """Token ids of every prompt, in order."""
    payload = {
        "mark": MARK,
        "model_path": job.model_path,
        "trust_remote_code": job.trust_remote_code,
        "conversations": prompts.conversations() if job.chat_template else None,
        "texts": None if job.chat_template else prompts.texts(),
    }
    code, out, err = _run_child(job, json.dumps(payload).encode())
    return read_child(job, out, err, code, len(prompts.prompts))


def read_child(job: TokenizerJob, out: str, err: str, code: int, count: int) -> list[list[int]]:
    """The ids from what the child printed, or the error that fits."""
    lines = [line[len(MARK) :] for line in out.splitlines() if line.startswith(MARK)]
    try:
        answer: Any = json.loads(lines[-1]) if lines else {}
    except ValueError:
        answer = {}
    if not isinstance(answer, dict):
        answer = {}
    if "no_template" in answer:
        raise NO_TEMPLATE.error(
            f"the tokenizer in {job.model_path} has no chat template",
            evidence=[_short(answer["no_template"])],
            next="put the model's chat_template.jinja beside its tokenizer, or set chat_template: false",
        )
    ids = answer.get("ids")
    if isinstance(ids, list) and len(ids) == count and all(isinstance(i, list) and i for i in ids):
        return ids
    why = str(answer.get("error") or _last_line(err) or f"exit code {code} without a word")
    if "trust_remote_code" in why and not job.trust_remote_code:
        raise NEEDS_REMOTE_CODE.error(
            f"the tokenizer in {job.model_path} is code of its own",
            evidence=[_short(why)],
            next="read that code, then set trust_remote_code: true (it runs as the service user)",
        )
    raise _failed(job, [_short(why)])


def child_environment(job: TokenizerJob, home: str) -> dict[str, str]:
    """All that the child gets to see of an environment."""
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "HF_HOME": home,
        "TMPDIR": home,
        "LC_ALL": "C.UTF-8",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
    }
    if job.pythonpath:
        env["PYTHONPATH"] = job.pythonpath
    return env


def _run_child(job: TokenizerJob, payload: bytes) -> tuple[int, str, str]:
    account = _account(job.user)
    home = tempfile.mkdtemp(prefix="aerie-tokenizer-")
    try:
        identity: dict[str, Any] = {}
        if account is not None and account.pw_uid != os.geteuid():
            os.chown(home, account.pw_uid, account.pw_gid)
            groups = os.getgrouplist(account.pw_name, account.pw_gid)
            identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": groups}
        try:
            child = subprocess.Popen(
                [job.python, "-c", CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=home,
                env=child_environment(job, home),
                start_new_session=True,
                **identity,
            )
        except OSError as error:
            raise _failed(job, [f"{type(error).__name__}: {error}"]) from error
        return _talk(job, child, payload)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _talk(job: TokenizerJob, child: subprocess.Popen[bytes], payload: bytes) -> tuple[int, str, str]:
    try:
        out, err = child.communicate(payload, timeout=job.timeout)
    except subprocess.TimeoutExpired as error:
        raise _failed(job, [f"it did not finish within {job.timeout:.0f} s"]) from error
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    return child.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


def _account(user: str | None) -> pwd.struct_passwd | None:
    if user is None:
        return None
    try:
        account = pwd.getpwnam(user)
    except KeyError as error:
        raise USER_UNUSABLE.error(
            f"there is no user {user!r} on this host", next="install first, or correct the option user"
        ) from error
    if os.geteuid() not in (0, account.pw_uid):
        raise USER_UNUSABLE.error(
            f"only root can run the tokenizer as {user!r}",
            evidence=[f"effective user id {os.geteuid()}"],
            next="run the task with become: true",
        )
    return account


def _failed(job: TokenizerJob, evidence: list[str]) -> AerieError:
    return TOKENIZER_FAILED.error(
        f"the tokenizer in {job.model_path} could not be used",
        evidence=[*evidence, f"python {job.python}, user {job.user or 'unchanged'}"],
        next="check that the user can read the model's directory and that the python is the release's",
    )


def _short(text: Any) -> str:
    return " ".join(str(text).split())[:400]


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
