"""What is asked of a sweep, judged before anything is touched. Pure: the inventory alone decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance.arguments import check_free_arguments, normalise
from ansible.module_utils.aerie.instance.unit import check_user_environment
from ansible.module_utils.aerie.measure.bench_run import check_batches
from ansible.module_utils.aerie.measure.tune_errors import (
    BAD_CANDIDATE,
    BAD_LENGTHS,
    HIDDEN_PRESET,
    NO_CYCLE,
    TOO_MANY_AT_A_TIME,
)

from .estimates import enough_prompts
from .settings import NCCL_TUNED, base_setting, presets_for, require_chain, try_custom_all_reduce

CANDIDATE_KEYS = ("name", "arguments", "environment")


def check(kind: str, values: Mapping[str, Any]) -> None:
    """Raise an ``AerieError`` for what cannot be swept. ``values``: the inventory's variables, defaults filled in."""
    check_batches(values["sglang_tune_batch_sizes"])
    enough_prompts(int(values["sglang_tune_prompts"]))
    limit = int(values.get("sglang_server_max_running_requests") or 0)
    _check_batches(values["sglang_tune_batch_sizes"], limit)
    if kind == "profile" and not values.get("sglang_server_speculative"):
        raise NO_CYCLE.error(
            "there is no decode cycle of draft and verify to profile", next="set sglang_server_speculative"
        )
    if kind != "tune":
        return
    base = ("speculative", "arguments", "environment")
    require_chain(base_setting({name: values.get(f"sglang_server_{name}") or {} for name in base}))
    _check_lengths(values["sglang_tune_lengths"] or range(1, values["sglang_tune_max_steps"] + 1))
    _check_candidates(values["sglang_tune_candidates"])
    wanted = values["sglang_tune_nccl_presets"]
    why = _hidden(values.get("gpu_host_nccl_env"), values.get("sglang_server_arguments"))
    if "auto" not in wanted and presets_for([], wanted) and why:
        raise HIDDEN_PRESET.error(
            f"{why}, so no preset would be what it is called",
            next="move gpu_host_nccl_env's to sglang_server_environment, take enable_deterministic_inference out of "
            "sglang_server_arguments, or set sglang_tune_nccl_presets: []",
        )


def resolved(request: Mapping[str, Any]) -> dict[str, Any]:
    """The request with presets and all-reduce chosen by topology.

    request: as roles/sglang_tune/vars/main.yml makes it, with ``topology`` and ``host_environment`` (the host's
    defaults for every instance), which are taken out. ``notes``: what was left out, in words.
    """
    left = dict(request)
    topology = left.pop("topology", None) or []
    arguments = (left.get("base") or {}).get("arguments")
    why = _hidden(left.pop("host_environment", None), arguments)
    wanted, left["notes"] = left.get("presets"), []
    if why and wanted is None and presets_for(topology, None):
        wanted = []
        left["notes"] = [f"NCCL presets were not tried: {why}."]
    left["presets"] = presets_for(topology, wanted)
    reduces = False if _deterministic(arguments) else left.get("custom_all_reduce")
    left["custom_all_reduce"] = try_custom_all_reduce(topology, reduces)
    return left


def _hidden(environment: Mapping[str, Any] | None, arguments: Mapping[str, Any] | None) -> str:
    """Why a preset's variables would not be those that run; empty where they would."""
    if _deterministic(arguments):
        return "enable_deterministic_inference sets NCCL_ALGO to allreduce:tree whatever the unit says"
    shared = ", ".join(name for name in NCCL_TUNED if (environment or {}).get(name) is not None)
    return f"gpu_host_nccl_env sets {shared} for the whole host" if shared else ""


def _deterministic(arguments: Mapping[str, Any] | None) -> bool:
    """Whether SGLang overwrites NCCL_ALGO and switches custom all-reduce off (`server_args.py`, read in 0.5.4, 0.5.17
    and 0.5.23: at TP above 1)."""
    return any(normalise(k) == "enable_deterministic_inference" and v for k, v in (arguments or {}).items())


def _check_batches(batches: Sequence[int], limit: int) -> None:
    if limit and max(batches, default=0) > limit:
        raise TOO_MANY_AT_A_TIME.error(
            f"batch {max(batches)} was asked for, and the server runs {limit} requests at a time",
            next=f"raise sglang_server_max_running_requests, or keep sglang_tune_batch_sizes up to {limit}",
        )


def _check_lengths(lengths: Sequence[int]) -> None:
    wrong = [one for one in lengths if one < 0]
    if wrong or not any(one > 0 for one in lengths):
        raise BAD_LENGTHS.error(
            f"the chain lengths {list(lengths)} cannot be tried",
            next="correct sglang_tune_lengths, or raise sglang_tune_max_steps",
        )


def _check_candidates(candidates: Sequence[Mapping[str, Any]]) -> None:
    seen: set[str] = set()
    for number, one in enumerate(candidates, 1):
        name = str(one.get("name") or "")
        unknown = sorted(set(one) - set(CANDIDATE_KEYS))
        why = ""
        if not name or name in seen:
            why = f"its name, {name!r}, is empty or another one's"
        elif unknown:
            why = f"unknown keys: {', '.join(unknown)}"
        elif not one.get("arguments") and not one.get("environment"):
            why = "it changes nothing: it has neither arguments nor environment"
        seen.add(name)
        try:
            check_free_arguments(one.get("arguments") or {})
            check_user_environment(one.get("environment") or {})
        except AerieError as error:
            why = why or error.what
        if why:
            raise BAD_CANDIDATE.error(
                f"candidate {number} of sglang_tune_candidates cannot be tried",
                evidence=[why, f"keys: {', '.join(CANDIDATE_KEYS)}"],
                next="correct sglang_tune_candidates; what has a variable of its own cannot be a candidate",
            )
