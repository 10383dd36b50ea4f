"""Server arguments: a mapping as people write it in an inventory, and the command line that SGLang gets.

Keys are SGLang's flag names with or without dashes and with ``_`` or ``-`` (``mem_fraction_static``). Values:
``true`` gives the bare flag, ``false`` and ``null`` leave it out, a list gives several words after one flag, a
mapping gives its JSON text, anything else its text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ErrorKind

BAD_ARGUMENT = ErrorKind(
    "bad-server-argument",
    "A server argument in the inventory cannot be passed on: it is owned by a variable of its own, would put a "
    "secret on the command line, or its value has no text form.",
)
BAD_SPECULATION = ErrorKind(
    "bad-speculation",
    "The speculation settings contradict each other. SGLang crashes on, or silently changes, a partial set of "
    "steps / topk / draft tokens, so all are stated or none (sglang PR #22895, #34361).",
)

SECRETS = ("api_key", "admin_api_key")

# Flags that a variable of the role owns: named here so that the error can say which variable to set.
OWNED = {
    "model_path": "sglang_server_model_path",
    "model": "sglang_server_model_path",
    "host": "sglang_server_host",
    "port": "sglang_server_port",
    "max_running_requests": "sglang_server_max_running_requests",
    "nccl_port": "sglang_server_rendezvous_port",
    "speculative_algorithm": "sglang_server_speculative.algorithm",
    "speculative_algo": "sglang_server_speculative.algorithm",
    "speculative_draft_model_path": "sglang_server_draft_model_path",
    "speculative_draft_model": "sglang_server_draft_model_path",
    "speculative_num_steps": "sglang_server_speculative.num_steps",
    "speculative_eagle_topk": "sglang_server_speculative.eagle_topk",
    "speculative_num_draft_tokens": "sglang_server_speculative.num_draft_tokens",
}
# No release that was unpacked (0.4.4.post1 to 0.5.23) reads these, though people copy them from posts.
WITHOUT_EFFECT = {"num_continuous_decode_steps": "SGLang parses it but reads it nowhere"}


@dataclass(frozen=True)
class Speculation:
    """EAGLE-3 settings. ``num_steps`` drafts a chain per cycle, ``eagle_topk`` its width, ``num_draft_tokens`` the
    tokens verified per cycle (at topk 1: steps + 1)."""

    algorithm: str
    num_steps: int | None = None
    eagle_topk: int | None = None
    num_draft_tokens: int | None = None

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Speculation | None:
        """Read ``sglang_server_speculative``; an empty mapping means no speculation.

        Raises bad-speculation for unknown keys, a partial set, or numbers that SGLang would silently change.
        """
        if not given:
            return None
        known = ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens")
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise BAD_SPECULATION.error(
                f"sglang_server_speculative has unknown keys: {', '.join(unknown)}",
                evidence=[f"known keys: {', '.join(known)}"],
                next="correct the inventory and run again",
            )
        numbers = {key: given.get(key) for key in known[1:]}
        stated = {key: value for key, value in numbers.items() if value is not None}
        if stated and len(stated) != len(numbers):
            missing = ", ".join(sorted(set(numbers) - set(stated)))
            raise BAD_SPECULATION.error(
                f"sglang_server_speculative states only some of steps, topk and draft tokens (missing: {missing})",
                evidence=[f"{key}: {value}" for key, value in stated.items()],
                next="state num_steps, eagle_topk and num_draft_tokens, or none of the three",
            )
        for key, value in stated.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BAD_SPECULATION.error(
                    f"sglang_server_speculative.{key} is {value!r}; a whole number from 1 is needed",
                    next="correct the inventory and run again",
                )
        algorithm = given.get("algorithm")
        if not isinstance(algorithm, str) or not algorithm:
            raise BAD_SPECULATION.error(
                "sglang_server_speculative has no algorithm",
                next="set sglang_server_speculative.algorithm, for example EAGLE3",
            )
        result = cls(algorithm, **{key: int(value) for key, value in stated.items()})
        if result.eagle_topk == 1 and result.num_draft_tokens != (result.num_steps or 0) + 1:
            raise BAD_SPECULATION.error(
                f"eagle_topk 1 verifies num_steps + 1 tokens, so num_draft_tokens {result.num_draft_tokens} cannot be "
                f"had with {result.num_steps} steps; SGLang would silently use {(result.num_steps or 0) + 1}",
                next=f"set num_draft_tokens: {(result.num_steps or 0) + 1}, or change num_steps",
            )
        return result

    def as_arguments(self, draft_model_path: str | None) -> dict[str, Any]:
        """The server arguments of these settings."""
        return {
            "speculative_algorithm": self.algorithm,
            "speculative_draft_model_path": draft_model_path or None,
            "speculative_num_steps": self.num_steps,
            "speculative_eagle_topk": self.eagle_topk,
            "speculative_num_draft_tokens": self.num_draft_tokens,
        }


def normalise(name: str) -> str:
    """``--Mem-Fraction-Static`` -> ``mem_fraction_static``."""
    return name.strip().lstrip("-").replace("-", "_").lower()


def check_free_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Check ``sglang_server_arguments`` and return it with normalised keys.

    Raises bad-server-argument for keys that a role variable owns, for secrets, and for a key given twice.
    """
    result: dict[str, Any] = {}
    for given, value in arguments.items():
        key = normalise(str(given))
        if key in SECRETS:
            raise BAD_ARGUMENT.error(
                f"sglang_server_arguments holds {given}: a secret on the command line is visible in ps",
                next=f"set sglang_server_{key} (from a vault) instead",
            )
        if key in OWNED:
            raise BAD_ARGUMENT.error(
                f"sglang_server_arguments holds {given}, which {OWNED[key]} sets",
                next=f"move the value to {OWNED[key]}",
            )
        if key == "config":
            raise BAD_ARGUMENT.error(
                "sglang_server_arguments holds config: Aerie writes the configuration file itself",
                next="put the file's settings into sglang_server_arguments, one key each",
            )
        if key in WITHOUT_EFFECT:
            raise BAD_ARGUMENT.error(
                f"sglang_server_arguments holds {given}, which has no effect: {WITHOUT_EFFECT[key]}",
                next="remove it",
            )
        if key in result:
            raise BAD_ARGUMENT.error(
                f"sglang_server_arguments names --{key.replace('_', '-')} twice", next="keep one of the two"
            )
        result[key] = value
    return result


def text_of(value: Any) -> str:
    """The word that carries a value on a command line or in an environment. Numbers keep their YAML form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return str(value)


def command_line(arguments: Mapping[str, Any]) -> list[str]:
    """Flags in alphabetical order, so that the same settings always give the same command line."""
    words: list[str] = []
    for key in sorted(arguments):
        value = arguments[key]
        if value is None or value is False:
            continue
        words.append("--" + key.replace("_", "-"))
        if value is True:
            continue
        if isinstance(value, Sequence) and not isinstance(value, str):
            words += [text_of(item) for item in value]
        else:
            words.append(text_of(value))
    return words
