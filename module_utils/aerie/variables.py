"""Checks of an inventory alone: no host is asked, so they run offline and before anything is touched."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from .errors import ErrorKind
from .instance.arguments import SECRETS, Speculation, check_free_arguments
from .instance.keys import check_key
from .instance.unit import check_user_environment

UNKNOWN_VARIABLE = ErrorKind(
    "unknown-variable",
    "The inventory sets a variable with one of Aerie's prefixes that no role knows: usually a misspelling.",
)
WRONG_TYPE = ErrorKind(
    "wrong-type",
    'A variable has another type than its role expects. Text such as "false" would count as true, so it is refused '
    "instead of guessed at.",
)
MISSING_VALUE = ErrorKind("missing-value", "A variable that has no sensible default is not set.")
BAD_FLOOR = ErrorKind(
    "bad-accept-floor",
    "The floor for the accept length cannot be reached, or gates nothing. A floor belongs to a step count: at most "
    "steps + 1 tokens are gained per verify, and 1 is what no speculation gives.",
)
BAD_VALUE = ErrorKind("bad-value", "A variable has a value that its role cannot work with.")

_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "path": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "list": (list, tuple),
    "dict": (Mapping,),
}
# In a list of words a number is as good as its text: [0, 1] for GPUs, [8000] for anything.
_ELEMENTS = {**_TYPES, "str": (str, int, float)}


def check_names(variables: Iterable[str], known: Iterable[str], prefixes: Iterable[str]) -> None:
    """Raise unknown-variable for names with our prefixes that no argument spec has, with the nearest known one."""
    known_names = sorted(set(known))
    starts = tuple(prefixes)
    unknown = sorted(name for name in set(variables) - set(known_names) if name.startswith(starts))
    if not unknown:
        return
    evidence = []
    for name in unknown:
        near = difflib.get_close_matches(name, known_names, n=1)
        evidence.append(f"{name}" + (f"   (did you mean {near[0]}?)" if near else ""))
    raise UNKNOWN_VARIABLE.error(
        f"{len(unknown)} unknown variable{'s' if len(unknown) > 1 else ''}",
        evidence=evidence,
        next="correct the names; docs/variables.md and roles/*/meta/argument_specs.yml list all of them",
    )


def check_types(values: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise wrong-type for values whose type differs from the argument spec's; numbers in quotes are refused too."""
    evidence = []
    for name, value in sorted(values.items()):
        option = options.get(name)
        if option is None or value is None:
            continue
        expected = _TYPES.get(str(option.get("type", "str")))
        if expected is None:
            continue
        if not _is(value, expected):
            shown = "its value (a secret)" if option.get("no_log") else repr(value)
            needed = option.get("type", "str")
            evidence.append(f"{name}: {shown} is {type(value).__name__}, {needed} is needed")
    if evidence:
        raise WRONG_TYPE.error(
            f"{len(evidence)} variable{'s have' if len(evidence) > 1 else ' has'} the wrong type",
            evidence=evidence,
            next="write true or false without quotes; on the command line use JSON: -e '{\"name\": true}'",
        )


def check_choices(values: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise wrong-type for list elements of another type than stated, bad-value for values that are no choice.

    With this and :func:`check_types` a playbook needs no validation of its own for each role.
    """
    for name, value in sorted(values.items()):
        option = options.get(name)
        if option is None or value is None:
            continue
        parts = value if isinstance(value, (list, tuple)) else [value]
        expected = _ELEMENTS.get(str(option.get("elements"))) if isinstance(value, (list, tuple)) else None
        odd = [one for one in parts if expected and not _is(one, expected)]
        if odd:
            raise WRONG_TYPE.error(
                f"{name} holds {odd[0]!r}, which is {type(odd[0]).__name__}; {option['elements']} is needed",
                next="write numbers and true or false without quotes",
            )
        choices = option.get("choices")
        if choices and any(one not in choices for one in parts):
            raise BAD_VALUE.error(
                f"{name} is {value!r}", next=f"use one of {', '.join(str(one) for one in choices)}"
            )


def _is(value: Any, expected: tuple[type, ...]) -> bool:
    return isinstance(value, expected) and (not isinstance(value, bool) or bool in expected)


def check_server(values: Mapping[str, Any]) -> list[str]:
    """Check the server's settings against each other; returns warnings.

    values: the resolved ``sglang_server_*`` variables. Raises missing-value, bad-value, bad-accept-floor and the
    errors of ``arguments``, ``keys`` and ``unit``.
    """
    speculation = Speculation.from_mapping(values.get("sglang_server_speculative") or {})
    check_free_arguments(values.get("sglang_server_arguments") or {})
    check_user_environment(values.get("sglang_server_environment") or {})
    for secret in SECRETS:
        check_key(f"sglang_server_{secret}", str(values.get(f"sglang_server_{secret}") or ""))
    needed = ["sglang_server_model_path"] + (["sglang_server_draft_model_path"] if speculation else [])
    for name in needed:
        path = values.get(name)
        if not path:
            raise MISSING_VALUE.error(
                f"{name} is not set", next=f"set {name} to the model's directory on the host"
            )
        if not str(path).startswith("/"):
            raise BAD_VALUE.error(
                f"{name} is {path!r}, which is not an absolute path",
                next="give the model's directory on the host; names of repositories are not downloaded",
            )
    port = values.get("sglang_server_port")
    if not isinstance(port, int) or not 1 <= port <= 65535:
        raise BAD_VALUE.error(f"sglang_server_port is {port!r}", next="use a number from 1 to 65535")
    check_floor(values.get("sglang_server_min_accept_length") or 0, speculation)
    return _warnings(values)


def check_floor(floor: float, speculation: Speculation | None) -> None:
    """Raise bad-accept-floor unless ``1 <= floor < steps + 1`` (0: no floor)."""
    if not floor or speculation is None:
        return
    if floor < 1:
        raise BAD_FLOOR.error(
            f"sglang_server_min_accept_length {floor} gates nothing: a useless draft still gives 1.0",
            next="set a floor above 1, or 0 to measure without one",
        )
    steps = speculation.num_steps
    if steps is not None and floor >= steps + 1:
        raise BAD_FLOOR.error(
            f"sglang_server_min_accept_length {floor} cannot be reached with {steps} steps (at most {steps + 1})",
            next=f"set a floor below {steps + 1}, or change num_steps",
        )


def _warnings(values: Mapping[str, Any]) -> list[str]:
    found = []
    host = str(values.get("sglang_server_host") or "")
    if host not in ("127.0.0.1", "::1", "localhost") and not values.get("sglang_server_api_key"):
        found.append(
            f"sglang_server_host {host} is reachable from other machines and sglang_server_api_key is empty: "
            "anyone who reaches the port can use the server and its administrative endpoints"
        )
    arguments = values.get("sglang_server_arguments") or {}
    if any(
        str(name).replace("-", "_").lstrip("_") == "trust_remote_code" and arguments[name]
        for name in arguments
    ):
        found.append("trust_remote_code runs Python code from the model directory as the service user")
    return found
