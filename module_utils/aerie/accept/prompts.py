"""Which prompts are sent: the shipped set or a person's file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import AerieError, ErrorKind
from .prompt_set import DEFAULT_PROMPTS

PROMPTS_UNUSABLE = ErrorKind(
    "accept-prompts-unusable",
    "The prompts file cannot be read, or it is neither a JSON list nor text with one prompt a line.",
)
PROMPTS_TOO_FEW = ErrorKind(
    "accept-prompts-too-few",
    "More prompts were asked for than the set holds. A prompt sent twice adds no knowledge: at temperature "
    "0 its answer is the same, and the interval would come out too narrow.",
)

Message: TypeAlias = dict[str, str]
Prompt: TypeAlias = "str | list[Message]"
"""A user's text, or a whole conversation as a list of {"role", "content"}."""


@dataclass(frozen=True)
class PromptSet:
    """The prompts of one run and where they came from."""

    prompts: tuple[Prompt, ...]
    source: str
    sha256: str

    def conversations(self) -> list[list[Message]]:
        """Each prompt as chat messages."""
        return [[{"role": "user", "content": p}] if isinstance(p, str) else p for p in self.prompts]

    def texts(self) -> list[str]:
        """Each prompt as raw text; a conversation has no raw text and is refused."""
        raw = [p for p in self.prompts if isinstance(p, str)]
        if len(raw) != len(self.prompts):
            raise PROMPTS_UNUSABLE.error(
                "conversations can only be sent through a chat template",
                evidence=[f"{self.source}: {len(self.prompts) - len(raw)} prompts are lists of messages"],
                next="leave chat_template at true, or write the prompts as plain text",
            )
        return raw


def prompt_sha256(prompt: Prompt) -> str:
    """Hash that names one prompt across runs: sha256 of its JSON form, hexadecimal."""
    return hashlib.sha256(json.dumps(prompt, ensure_ascii=False, sort_keys=True).encode()).hexdigest()


def choose_prompts(count: int, text: str | None = None, source: str = "shipped") -> PromptSet:
    """The first ``count`` prompts of the file's ``text``, or of the shipped set when it is None."""
    everything = list(DEFAULT_PROMPTS) if text is None else parse_prompts(text, source)
    if count > len(everything):
        raise PROMPTS_TOO_FEW.error(
            f"{count} prompts were asked for and the set holds {len(everything)}",
            evidence=[f"prompt set: {source}"],
            next=f"set num_prompts to {len(everything)} or fewer, or name a longer file in prompts",
        )
    chosen = tuple(everything[:count])
    joined = json.dumps(chosen, ensure_ascii=False, sort_keys=True).encode()
    return PromptSet(chosen, source, hashlib.sha256(joined).hexdigest())


def read_prompts_file(path: Path) -> str:
    """The text of a prompts file (UTF-8)."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(str(path), f"{type(error).__name__}: {error}") from error


def parse_prompts(text: str, source: str) -> list[Prompt]:
    """Read a prompts file: a JSON list (texts or conversations), else one prompt a line; blank lines are
    skipped.
    """
    if text.lstrip().startswith("["):
        return _parse_json(text, source)
    prompts: list[Prompt] = [line.strip() for line in text.splitlines() if line.strip()]
    if not prompts:
        raise _unusable(source, "the file holds no prompt")
    return _without_repeats(prompts, source)


def _parse_json(text: str, source: str) -> list[Prompt]:
    try:
        items = json.loads(text)
    except ValueError as error:
        raise _unusable(source, f"it starts like a JSON list, but is not JSON: {error}") from error
    if not isinstance(items, list) or not items:
        raise _unusable(source, "a JSON file must hold a list with at least one prompt")
    prompts: list[Prompt] = []
    for number, item in enumerate(items, 1):
        if isinstance(item, str) and item.strip():
            prompts.append(item)
        elif _is_conversation(item):
            prompts.append([{"role": m["role"], "content": m["content"]} for m in item])
        else:
            raise _unusable(source, f"item {number} is neither a text nor a list of role/content messages")
    return _without_repeats(prompts, source)


def _is_conversation(item: Any) -> bool:
    return (
        isinstance(item, list)
        and bool(item)
        and all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
            for m in item
        )
    )


def _without_repeats(prompts: Sequence[Prompt], source: str) -> list[Prompt]:
    seen: dict[str, int] = {}
    for number, prompt in enumerate(prompts, 1):
        key = prompt_sha256(prompt)
        if key in seen:
            raise _unusable(
                source, f"prompts {seen[key]} and {number} are the same; each may stand there once"
            )
        seen[key] = number
    return list(prompts)


def _unusable(source: str, why: str) -> AerieError:
    return PROMPTS_UNUSABLE.error(
        f"the prompts file {source} cannot be used",
        evidence=[why],
        next="write a JSON list of texts, or one prompt a line",
    )
