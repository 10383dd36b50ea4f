"""What must be known about the server besides its answers: its speculation settings and its environment.

`/server_info` (up to 0.5.5: `/get_server_info`) holds every argument of the server, API keys among them.
Only the fields named here ever leave :func:`server_settings`; the rest is neither kept, logged nor returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import AerieError, ErrorKind
from .client import Client

LOSSY = ErrorKind(
    "accept-lossy-thresholds",
    "The server accepts drafts that the target would not have chosen "
    "(--speculative-accept-threshold-single or -acc is not 1.0). Its accept length is bought with other "
    "text and says nothing about the draft.",
)
SIMULATED = ErrorKind(
    "accept-simulated",
    "The server's environment makes it invent its acceptance (SGLANG_SIMULATE_ACC_LEN, since 0.5.3).",
)
ENVIRONMENT_UNREADABLE = ErrorKind(
    "accept-environment-unreadable",
    "The environment of the server process cannot be read, so simulated acceptance cannot be ruled out.",
)
SETTINGS_DIFFER = ErrorKind(
    "accept-settings-differ",
    "The number of steps or draft tokens that was told is not the one that the server runs with. "
    "A floor belongs to a step count, so nothing can be judged.",
)

_PATHS = ("/server_info", "/get_server_info")
_THRESHOLDS = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
_WANTED = (
    *_THRESHOLDS,
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_num_draft_tokens",
    "speculative_eagle_topk",
    "speculative_adaptive",
    "version",
    "tp_size",
    "pp_size",
    "dp_size",
    "enable_dp_attention",
)
_SIMULATION = ("SGLANG_SIMULATE_ACC_LEN", "SIMULATE_ACC_LEN")
"""The second name is that of releases before the SGLANG_ prefix; METHOD and TOKEN_MODE do nothing without a
LEN.
"""


@dataclass(frozen=True)
class ServerSettings:
    """The fields of /server_info that matter here; None where the release does not tell."""

    source: str | None
    why_unknown: str | None
    version: str | None = None
    algorithm: str | None = None
    steps: int | None = None
    draft_tokens: int | None = None
    topk: int | None = None
    adaptive: bool = False
    thresholds: tuple[tuple[str, float], ...] = ()
    ranks: int | None = None


def server_settings(client: Client, timeout: float) -> ServerSettings:
    """Ask the server, by the new path and then the old one. A server that refuses is not an error: it is
    said.
    """
    answer = "no answer"
    for path in _PATHS:
        status, body = client.get(path, timeout)
        if status == 200 and isinstance(body, Mapping):
            return _select(path, body)
        answer = f"{path} answered HTTP {status}"
        if status not in (404, 405):
            break
    return ServerSettings(source=None, why_unknown=answer)


def _select(path: str, body: Mapping[str, Any]) -> ServerSettings:
    found: dict[str, Any] = {}
    thresholds: list[tuple[str, float]] = []
    for part in _parts(body):
        for name in _WANTED:
            value = part.get(name)
            if value is None:
                continue
            if name in _THRESHOLDS and isinstance(value, (int, float)):
                thresholds.append((name, float(value)))  # each rank's live value counts too
            found.setdefault(name, value)
    return ServerSettings(
        source=path,
        why_unknown=None,
        version=_text(found.get("version")),
        algorithm=_text(found.get("speculative_algorithm")),
        steps=_number(found.get("speculative_num_steps")),
        draft_tokens=_number(found.get("speculative_num_draft_tokens")),
        topk=_number(found.get("speculative_eagle_topk")),
        adaptive=found.get("speculative_adaptive") is True,
        thresholds=tuple(sorted(set(thresholds))),
        ranks=_ranks(found),
    )


def _ranks(found: Mapping[str, Any]) -> int | None:
    """Scheduler processes, one a GPU. With DP attention the data-parallel groups share those of TP."""
    tp, pp, dp = (_number(found.get(f"{name}_size")) for name in ("tp", "pp", "dp"))
    return None if tp is None else tp * (pp or 1) * (1 if found.get("enable_dp_attention") else dp or 1)


def _parts(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The arguments, then each rank's own state (a list since 0.4.8; before, keys at the top)."""
    yield body
    states = body.get("internal_states")
    if isinstance(states, list):
        yield from (state for state in states if isinstance(state, Mapping))


def check_thresholds(settings: ServerSettings) -> None:
    """Refuse lossy acceptance."""
    lossy = [f"{name} = {value}" for name, value in settings.thresholds if value != 1.0]
    if lossy:
        raise LOSSY.error(
            "the server accepts drafts that its target would not have chosen",
            evidence=lossy,
            next="remove the accept thresholds from the server's arguments (default 1.0) and restart it",
        )


def check_settings(settings: ServerSettings, steps: int | None, draft_tokens: int | None) -> None:
    """Refuse a step count that is not the server's."""
    told = {"num_steps": (steps, settings.steps), "num_draft_tokens": (draft_tokens, settings.draft_tokens)}
    if settings.topk == 1 and steps is not None and draft_tokens is not None and draft_tokens != steps + 1:
        raise _differs(
            [f"num_draft_tokens {draft_tokens} with topk 1: SGLang takes num_steps + 1 = {steps + 1}"]
        )
    wrong = [
        f"{name}: told {mine}, served {theirs}"
        for name, (mine, theirs) in told.items()
        if mine is not None and theirs is not None and mine != theirs
    ]
    if wrong and not settings.adaptive:
        raise _differs(wrong)


def check_environment(pid: int, proc: Path = Path("/proc")) -> None:
    """Refuse simulated acceptance, by the environment of the server process. Reads the two names, nothing
    else.
    """
    try:
        raw = (proc / str(pid) / "environ").read_bytes()
    except OSError as error:
        raise ENVIRONMENT_UNREADABLE.error(
            f"the environment of process {pid} cannot be read",
            evidence=[f"{type(error).__name__}: {error.strerror}"],
            next="give the pid of the running server in server_pid and run as root (become)",
        ) from error
    simulated = simulated_acceptance(raw)
    if simulated:
        raise SIMULATED.error(
            f"process {pid} invents its acceptance",
            evidence=simulated,
            next="remove the variable from the instance's environment and restart the server",
        )


def simulated_acceptance(environ: bytes) -> list[str]:
    """The variables in a /proc/<pid>/environ that switch simulation on; 0 and below leave it off."""
    found = []
    for entry in environ.split(b"\0"):
        name, _, value = entry.decode("utf-8", "replace").partition("=")
        if name not in _SIMULATION or not value.strip():
            continue
        try:
            on = float(value) > 0
        except ValueError:
            on = True
        if on:
            found.append(f"{name}={value}")
    return found


def _differs(evidence: list[str]) -> AerieError:
    return SETTINGS_DIFFER.error(
        "the server does not run with the speculation settings that were told",
        evidence=evidence,
        next="deploy the instance again, or correct the settings and set a floor for the server's step count",
    )


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
