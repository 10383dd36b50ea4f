"""Prompt sets, and the tokenizer's child process with a double of `transformers`."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ansible.module_utils.aerie.accept.prompt_set import DEFAULT_PROMPTS
from ansible.module_utils.aerie.accept.prompts import (
    PromptSet,
    choose_prompts,
    parse_prompts,
    prompt_sha256,
    read_prompts_file,
)
from ansible.module_utils.aerie.accept.tokenize import TokenizerJob, read_child, tokenize
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.release.child import Finished, environment


def test_shipped_set_is_distinct_and_large_enough_for_the_default() -> None:
    assert len(DEFAULT_PROMPTS) == len(set(DEFAULT_PROMPTS)) == 40
    assert choose_prompts(24).prompts == DEFAULT_PROMPTS[:24]
    assert choose_prompts(40).source == "shipped"


def test_set_hash_changes_with_the_prompts_sent() -> None:
    assert choose_prompts(24).sha256 == choose_prompts(24).sha256
    assert choose_prompts(24).sha256 != choose_prompts(23).sha256


def test_more_prompts_than_there_are() -> None:
    with pytest.raises(AerieError) as refused:
        choose_prompts(3, "one\ntwo\n", "/etc/prompts")
    assert refused.value.kind.code == "accept-prompts-too-few"
    assert "holds 2" in refused.value.what


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]


@pytest.mark.parametrize(
    ("text", "prompts"),
    [
        ("one\n\n  two  \n", ["one", "two"]),
        ('["one", "two"]', ["one", "two"]),
        (
            ' [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?", "x": 1}], "b"]',
            [CHAT, "b"],
        ),
    ],
)
def test_prompt_files(text: str, prompts: list[object]) -> None:
    assert parse_prompts(text, "file") == prompts


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no prompt"),
        ("[", "not JSON"),
        ("[]", "at least one"),
        ('["a", 1]', "item 2"),
        ('["a", ""]', "item 2"),
        ('[[{"role": "user"}]]', "item 1"),
        ("a\nb\na\n", "prompts 1 and 3 are the same"),
    ],
)
def test_unusable_prompt_files(text: str, says: str) -> None:
    with pytest.raises(AerieError) as refused:
        parse_prompts(text, "/etc/prompts")
    assert refused.value.kind.code == "accept-prompts-unusable"
    assert says in refused.value.evidence[0]


def test_prompt_file_that_is_missing_or_not_text(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("missing", "binary"):
        with pytest.raises(AerieError) as refused:
            read_prompts_file(tmp_path / name)
        assert refused.value.kind.code == "accept-prompts-unusable"


def test_conversations_cannot_be_sent_as_raw_text() -> None:
    prompts = PromptSet((CHAT, "b"), "file", "0")
    assert prompts.conversations() == [CHAT, [{"role": "user", "content": "b"}]]
    with pytest.raises(AerieError):
        prompts.texts()


def test_prompt_hash_tells_text_and_conversation_apart() -> None:
    assert prompt_sha256("a") != prompt_sha256([{"role": "user", "content": "a"}])


FAKE = '''
"""A double of transformers for tests: token ids are character codes."""
import os, sys, time

class Batch(dict):
    pass

class Tensor:
    def __init__(self, ids):
        self.ids = ids
    def tolist(self):
        return self.ids

class AutoTokenizer:
    chat_template = "x"

    @classmethod
    def from_pretrained(cls, path, **extra):
        print("noise from a tokenizer", '{"ids": [[1]]}')
        self = cls()
        self.kind = os.path.basename(path)
        if self.kind == "remote" and not extra.get("trust_remote_code"):
            raise ValueError("Please pass the argument `trust_remote_code=True` to allow custom code to be run.")
        if self.kind == "hang":
            time.sleep(60)
        if self.kind == "needs-torch":
            import torch
        if self.kind == "crash":
            print("Fatal Python error: no kernels", file=sys.stderr)
            os._exit(3)
        if self.kind == "untemplated":
            self.chat_template = None
        return self

    def encode(self, text, add_special_tokens=True):
        return ([0] if add_special_tokens else []) + [ord(c) for c in text]

    def apply_chat_template(self, chat, add_generation_prompt, tokenize):
        assert add_generation_prompt and tokenize
        if self.kind == "untemplated":
            raise ValueError("Cannot use chat template functions because tokenizer.chat_template is not set")
        if self.kind == "whoami":
            home = os.environ["HOME"]
            open(os.path.join(home, "cache"), "w").close()
            return [os.geteuid(), os.getegid(), "SECRET" in os.environ, *(ord(c) for c in home)]
        if self.kind == "counts-torch":
            try:
                import torch
            except ImportError:
                return [0]
            return [1]
        text = "".join(m["role"][0] + m["content"] for m in chat) + ">"
        ids = [ord(c) for c in text]
        return {
            "list": ids, "nested": [ids], "batch": Batch(input_ids=ids), "batch-nested": Batch(input_ids=[ids]),
            "tensor": Tensor([ids]), "text": text, "remote": ids, "needs-torch": ids,
        }[self.kind]
'''


@pytest.fixture
def fake() -> Iterator[Path]:
    """Directory, readable by everyone, with the double of transformers."""
    path = Path(tempfile.mkdtemp(prefix="aerie-test-"))
    path.chmod(0o755)
    (path / "transformers.py").write_text(FAKE)
    (path / "torch.py").touch()
    yield path
    shutil.rmtree(path)


PROMPTS = choose_prompts(2, "ab\ncé\n", "test")
IDS = [[ord(c) for c in "uab>"], [ord(c) for c in "ucé>"]]


def job(fake: Path, kind: str, **changes: object) -> TokenizerJob:
    base = TokenizerJob(
        python=sys.executable, model_path=f"/models/{kind}", pythonpath=str(fake), timeout=20.0
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["list", "nested", "batch", "batch-nested", "tensor", "text"])
def test_every_form_of_templated_ids(fake: Path, kind: str) -> None:
    assert tokenize(job(fake, kind), PROMPTS) == IDS


def test_torch_is_imported_only_for_who_needs_it(fake: Path) -> None:
    assert tokenize(job(fake, "counts-torch"), PROMPTS) == [[0], [0]]
    assert tokenize(job(fake, "counts-torch", trust_remote_code=True), PROMPTS) == [[1], [1]]
    assert tokenize(job(fake, "needs-torch"), PROMPTS) == IDS


def test_raw_text_only_when_asked_for(fake: Path) -> None:
    with pytest.raises(AerieError) as refused:
        tokenize(job(fake, "untemplated"), PROMPTS)
    assert refused.value.kind.code == "accept-no-chat-template"
    raw = tokenize(job(fake, "untemplated", chat_template=False), PROMPTS)
    assert raw == [[0, ord("a"), ord("b")], [0, ord("c"), ord("é")]]


def test_remote_code_only_when_allowed(fake: Path) -> None:
    with pytest.raises(AerieError) as refused:
        tokenize(job(fake, "remote"), PROMPTS)
    assert refused.value.kind.code == "accept-tokenizer-remote-code"
    assert tokenize(job(fake, "remote", trust_remote_code=True), PROMPTS) == IDS


def test_crash_is_told_with_its_last_line(fake: Path) -> None:
    with pytest.raises(AerieError) as refused:
        tokenize(job(fake, "crash"), PROMPTS)
    assert refused.value.kind.code == "accept-tokenizer-failed"
    assert refused.value.evidence[0] == "Fatal Python error: no kernels"


def test_hanging_tokenizer_is_ended(fake: Path) -> None:
    start = time.monotonic()
    with pytest.raises(AerieError) as refused:
        tokenize(job(fake, "hang", timeout=1.0), PROMPTS)
    assert "within 1 s" in refused.value.evidence[0]
    assert time.monotonic() - start < 10


def test_python_that_is_missing(fake: Path) -> None:
    with pytest.raises(AerieError) as refused:
        tokenize(job(fake, "list", python="/nowhere/python"), PROMPTS)
    assert refused.value.kind.code == "accept-tokenizer-failed"


def test_child_sees_a_small_environment_and_its_home_is_gone_afterwards(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "x")
    ids = tokenize(job(fake, "whoami"), PROMPTS)[0]
    assert ids[:3] == [os.geteuid(), os.getegid(), 0]
    home = "".join(map(chr, ids[3:]))
    assert "aerie-child-" in home
    assert not Path(home).exists()


def test_child_environment_keeps_the_network_and_gpus_away() -> None:
    env = environment("/tree", "/home")
    assert (env["PYTHONPATH"], env["CUDA_VISIBLE_DEVICES"], env["HF_HUB_OFFLINE"]) == ("/tree", "", "1")
    assert "PYTHONPATH" not in environment(None, "/home")


def test_user_that_does_not_exist(fake: Path) -> None:
    with pytest.raises(AerieError) as refused:
        tokenize(job(fake, "list", user="no-such-user"), PROMPTS)
    assert refused.value.kind.code == "accept-user-unusable"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs a python that everybody can run")
def test_child_runs_as_the_user(fake: Path) -> None:
    whoami = job(fake, "whoami", user="nobody", python="/usr/bin/python3")
    ids = tokenize(whoami, PROMPTS)[0]
    assert ids[0] != 0
    assert ids[1] != 0
    assert not Path("".join(map(chr, ids[3:]))).exists()


@pytest.mark.parametrize(
    "printed", ["", "AERIE-TOKEN-IDS {", 'AERIE-TOKEN-IDS {"ids": [[1]]}', "AERIE-TOKEN-IDS [1]"]
)
def test_child_that_answers_nonsense(printed: str) -> None:
    with pytest.raises(AerieError) as refused:
        read_child(TokenizerJob("python", "/m"), Finished(1, printed, ""), 2)
    assert refused.value.kind.code == "accept-tokenizer-failed"
    assert "exit code 1" in refused.value.evidence[0]
