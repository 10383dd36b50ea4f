"""What the double answers to /generate and /server_info, in the words of 0.5.23."""

from __future__ import annotations

import random
import time
from typing import Any

from . import probes
from .asked import DRAFT, STEPS, commanded, flag, pace

# Chance that a drafted token is accepted, by the draft's folder; two of each verify with every other one.
ACCEPTED = {"right": 0.8, "none": 0.8, "off-by-one": 0.76, "shifted": 0.72, "deep": 0.5, "shallow": 0.4,
            "fc-reversed": 0.4, "random": 0.02}  # fmt: skip
# Seconds on a card: a prefill, a token without speculation, a verify, a drafted token.
PREFILL_S, TOKEN_S, VERIFY_S, DRAFT_S = 0.003, 0.0012, 0.0014, 0.0001
LEAST_S = 0.01


def drafted(rng: random.Random, tokens: int) -> list[int]:
    """How many drafts each verify accepted, until there are ``tokens`` tokens; the first one comes from the prefill."""
    told, chance = commanded().get("accept"), ACCEPTED.get(DRAFT)
    found, made = [], 1
    while made < tokens:
        accepted = 2 if told is None else int(told)
        if told is None and chance is not None:
            accepted = 0
            while accepted < STEPS and rng.random() < chance:
                accepted += 1
        found.append(min(accepted, STEPS))
        made += found[-1] + 1
    return found


def answer(body: dict[str, Any]) -> dict[str, Any]:
    """An answer of /generate, after the time that it takes."""
    began, wrong = time.time(), commanded()
    how = wrong.get("generate")
    tokens = int((body.get("sampling_params") or {}).get("max_new_tokens", 16))
    asked = body.get("input_ids") or body.get("text") or ""
    rng = random.Random(str(asked))
    ids = [7, 8] * (tokens // 2) if how == "garbage" else [rng.randrange(10, 4000) for _ in range(tokens)]
    meta: dict[str, Any] = {
        "id": f"{rng.random()}",
        "prompt_tokens": max(1, len(asked)),
        "completion_tokens": tokens,
        "cached_tokens": 0,
        "finish_reason": {"type": "length", "length": tokens},
        "request_received_ts": began,
        "prefill_finished_time": began + 0.003,
    }
    probes.states(body.get("input_ids"))
    seconds = PREFILL_S + tokens * TOKEN_S
    if STEPS:
        found = drafted(rng, tokens)
        seconds = PREFILL_S + len(found) * (VERIFY_S + DRAFT_S * STEPS)
        probes.cycles(found)
        meta |= {
            "spec_verify_ct": len(found),
            "spec_num_correct_drafts": sum(found),
            "spec_num_proposed_drafts": STEPS * len(found),
            "spec_correct_drafts_histogram": [found.count(n) for n in range(STEPS + 1)],
            "spec_accept_length": (tokens - 1) / max(1, len(found)),
        }
    time.sleep(float(wrong.get("drain", max(LEAST_S, pace() * seconds))))
    meta["e2e_latency"] = time.time() - began
    if how == "empty":
        return {"text": "", "output_ids": [], "meta_info": {**meta, "completion_tokens": 0}}
    return {"text": " ".join(f"word{one}" for one in ids), "output_ids": ids, "meta_info": meta}


def server_info() -> dict[str, Any]:
    """The fields of /server_info that anybody reads."""

    def number(name: str) -> int | None:
        return int(flag(f"--speculative-{name}", "0")) or None

    return {
        "version": "0.5.23",
        "model_path": flag("--model-path"),
        "speculative_algorithm": flag("--speculative-algorithm") or None,
        "speculative_num_steps": number("num-steps"),
        "speculative_eagle_topk": number("eagle-topk"),
        "speculative_num_draft_tokens": number("num-draft-tokens"),
        "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0,
        "speculative_adaptive": False,
        "max_total_num_tokens": 65536,
        "internal_states": [{"avg_spec_accept_length": 3.0 if STEPS else None}],
    }
