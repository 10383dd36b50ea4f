"""Checks of the settings that a server would be started with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..release.rules import version_key
from .case import Case, Finding, problem, warning
from .families import DRAFT_QUANTIZATION_FLAG, FIRST_RELEASE, LAST_RELEASE, at_least, draft_class

_ARGS = "server arguments of 0.5.9 (_handle_speculative_decoding) and 0.5.23 (_handle_eagle_family)"
# Methods that turn plain weights into the format while they are loaded; all others need a checkpoint made for them.
ONLINE_QUANTIZATION = frozenset({"fp8", "w8a8_fp8", "w8a8_int8", "bitsandbytes", "torchao", "mxfp4", "mxfp8"})
LONGER_CONTEXT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
SIMULATED = ("SGLANG_SIMULATE_ACC_LEN", "SIMULATE_ACC_LEN")
_CONTEXT_KEYS = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)


def release_has_eagle3(case: Case) -> Iterator[Finding]:
    """EAGLE-3 came with 0.4.4.post2; a newer release than the rules know is judged by the newest ones."""
    if case.eagle3 and not at_least(case.release, FIRST_RELEASE):
        yield problem(
            "release-without-eagle3",
            f"{case.release} has no EAGLE-3",
            why=f"it came with {FIRST_RELEASE}",
            fix="use a later release",
            source="PR #4247",
        )
    elif case.settings.site_packages is None and version_key(case.release) > version_key(LAST_RELEASE):
        yield warning(
            "release-newer-than-rules",
            f"{case.release} is newer than the rules, which were read from releases up to {LAST_RELEASE}",
            why="the meaning of layer ids has changed before (0.5.13)",
            fix="give site_packages, so that the rules are confirmed from the installed source",
            source="docs/draft-rules.md",
        )


def steps_are_complete(case: Case) -> Iterator[Finding]:
    """All three of steps, topk and draft tokens, or none."""
    given = {
        "num_steps": case.settings.num_steps,
        "eagle_topk": case.settings.eagle_topk,
        "num_draft_tokens": case.settings.num_draft_tokens,
    }
    missing = [name for name, value in given.items() if value is None]
    if missing and len(missing) < len(given):
        yield problem(
            "steps-partial",
            f"{' and '.join(missing)} must be given too",
            why="a partial set ends in an assertion or a TypeError at start (PR #22895, #34361)",
            fix="give num_steps, eagle_topk and num_draft_tokens, or none of them",
            source=_ARGS,
        )


def steps_make_sense(case: Case) -> Iterator[Finding]:
    """With topk 1 the number of draft tokens is not free; with a tree it is bounded."""
    steps, topk, tokens = case.settings.num_steps, case.settings.eagle_topk, case.settings.num_draft_tokens
    if steps is None or topk is None or tokens is None:
        return
    if steps < 1 or topk < 1 or tokens < 2:
        yield problem(
            "steps-too-small",
            f"num_steps {steps}, eagle_topk {topk}, num_draft_tokens {tokens} draft nothing",
            why="a step drafts at least one token, and the token before it is counted too",
            fix="the smallest useful set is 1, 1, 2",
            source=_ARGS,
        )
    elif topk == 1 and tokens != steps + 1:
        yield problem(
            "draft-tokens-forced",
            f"num_draft_tokens {tokens} will be served as {steps + 1}",
            why="with eagle_topk 1 SGLang sets it to num_steps + 1 and only logs a warning (SpecForge issue #310)",
            fix=f"set num_draft_tokens to {steps + 1}",
            source=_ARGS,
        )
    elif topk > 1 and tokens > 1 + topk + (steps - 1) * topk * topk:
        yield problem(
            "draft-tokens-too-many",
            f"num_draft_tokens {tokens} is more than a tree of {steps} steps with topk {topk} has",
            why=f"it has {topk + (steps - 1) * topk * topk} nodes and the token before it",
            fix=f"at most {1 + topk + (steps - 1) * topk * topk}",
            source="srt/speculative: the draft tokens are the best nodes of the tree",
        )


def acceptance_is_real(case: Case) -> Iterator[Finding]:
    """Simulated acceptance and lossy thresholds make every figure worthless."""
    for name in SIMULATED:
        value = case.settings.env.get(name, "").strip()
        if value and value not in ("-1", "0", "-1.0", "0.0"):
            yield problem(
                "acceptance-simulated",
                f"{name}={value} fakes the acceptance",
                why="drafts are accepted without the target's word: wrong text, and figures that prove nothing",
                fix=f"remove {name} from the environment",
                source="srt/speculative, named SIMULATE_ACC_LEN up to 0.5.2",
            )
    thresholds = {
        "speculative_accept_threshold_single": case.settings.accept_threshold_single,
        "speculative_accept_threshold_acc": case.settings.accept_threshold_acc,
    }
    for option, threshold in thresholds.items():
        if threshold is not None and threshold < 1.0:
            yield problem(
                "acceptance-lossy",
                f"{option} is {threshold}",
                why="below 1.0 drafts are accepted that the target would not have said: the output changes and the "
                "accept length cannot be compared",
                fix=f"leave {option} out, or accept acceptance-lossy knowingly",
                source="--speculative-accept-threshold-single, -acc",
            )


def draft_reaches_the_context(case: Case) -> Iterator[Finding]:
    """The draft's context window must not be shorter than what is served."""
    own = derived_context(case.draft.text)
    served = case.settings.context_length or derived_context(case.target.text)
    if case.settings.algorithm == "NGRAM" or own >= served:
        return
    allowed = case.settings.env.get(LONGER_CONTEXT, "").strip().lower() in ("1", "true", "yes", "on")
    text = f"the draft reaches {own} tokens; the server is to serve {served}"
    if allowed:
        yield warning(
            "draft-context-overridden",
            text,
            why=f"{LONGER_CONTEXT} lets it start; beyond its window the draft is untrained and acceptance falls "
            "(SGLang issue #6783)",
            fix=f"set context_length to {own}, or measure acceptance by length",
            source="srt/configs/model_config.py: _derive_context_length",
        )
        return
    yield problem(
        "draft-context",
        text,
        why="SGLang raises at the draft's load (before: illegal memory access, PR #9388)",
        fix=f"set context_length to at most {own}, or {LONGER_CONTEXT}=1 knowingly",
        source="srt/configs/model_config.py: _derive_context_length",
    )


def derived_context(config: Mapping[str, Any]) -> int:
    """A model's context length as SGLang derives it (``get_context_length``), in tokens."""
    scaling = config.get("rope_scaling") or {}
    factor = scaling.get("factor", 1) if isinstance(scaling, Mapping) else 1
    if "original_max_position_embeddings" in scaling or scaling.get("rope_type") == "llama3":
        factor = 1
    for key in _CONTEXT_KEYS:
        value = config.get(key)
        if value is not None:
            return int(factor * value)
    return 2048


def quantization_is_not_inherited(case: Case) -> Iterator[Finding]:
    """--quantization reaches the draft too, unless it is told otherwise."""
    method, own = case.settings.quantization, case.settings.draft_quantization
    if not method or method == "unquant" or case.draft.config.get("quantization_config"):
        return
    flag = at_least(case.release, DRAFT_QUANTIZATION_FLAG)
    known = draft_class(case.draft.architecture)
    if (own and flag) or (known is not None and known.mla and method == "modelopt_fp4"):
        return
    fix = (
        "set the draft's quantization to unquant (--speculative-draft-model-quantization unquant)"
        if flag
        else f"use {DRAFT_QUANTIZATION_FLAG} or later, which has --speculative-draft-model-quantization"
    )
    text = f"the draft is not quantized and inherits --quantization {method}"
    source = "server arguments: speculative_draft_model_quantization defaults to quantization; PR #28196"
    if method in ONLINE_QUANTIZATION:
        yield warning(
            "draft-quantization-inherited",
            text,
            why="its weights are quantized while they are loaded; acceptance may fall",
            fix=fix,
            source=source,
        )
        return
    yield problem(
        "draft-quantization",
        text,
        why=f"the draft's checkpoint has no quantization_config: Cannot find the config file for {method}",
        fix=fix,
        source=source,
    )
