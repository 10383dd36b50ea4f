"""Put the pair together: draw, check, write."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import predict
import torch

from .codes import Codes, make_codes
from .draft import FIRES_ABOVE, draft_config, make_draft
from .files import as_bfloat16, link_weights, write_json, write_model, write_model_files, write_states
from .schedule import Schedule, make_schedule
from .selftest import selftest
from .target import Heads, target_config, target_weights
from .text import PROMPTS, Text, make_text
from .wirings import Wiring, best_match, make_wirings

SEED = 12345


def build_pair(out: Path, options: argparse.Namespace, fingerprint: str) -> dict:
    """Write everything into the empty directory ``out``; returns the content of pair.json."""
    torch.set_num_threads(1)
    source = torch.Generator().manual_seed(SEED)
    text, heads = make_text(), Heads()
    schedule = make_schedule(text, options.accept, options.seeds)
    codes = make_codes(text, options.layers, options.flip, source)
    target = target_weights(codes, heads, source)
    draft = make_draft(text, codes, schedule, options.ids, heads, source)
    wirings = make_wirings(draft, options.ids, options.layers)
    outcomes = selftest(target, draft, codes, text, schedule, wirings)
    matches = {wiring.name: best_match(draft, codes, text, wiring) for wiring in wirings}
    for wiring in wirings:
        match = matches[wiring.name]
        if match is not None and (match > FIRES_ABOVE) is not wiring.right:
            raise AssertionError(f"{wiring.name}: best match {match}, fires above {FIRES_ABOVE}")

    write_model(out / "target", target_config(text, codes, heads), text.tokenizer, as_bfloat16(target))
    write_json(
        out / "target" / "generation_config.json",
        {"bos_token_id": text.bos, "eos_token_id": text.eos, "pad_token_id": text.pad},
    )
    weights = as_bfloat16(draft.weights) | {"d2t": draft.d2t, "t2d": draft.t2d}
    chosen = _chosen(wirings, options.wirings)
    first = None
    for wiring in chosen:
        directory = out / wiring.name
        config = draft_config(
            text, draft, heads, wiring.layer_ids, use_aux_hidden_state=wiring.use_aux_hidden_state
        )
        changed = _changed_weights(wiring, weights)
        if first is not None and not changed:
            write_model_files(directory, config, text.tokenizer)
            link_weights(first, directory)
        else:
            path = write_model(directory, config, text.tokenizer, weights | changed)
            first = first or path
    write_states(out / "states.safetensors", codes)
    write_json(out / "prompts.json", list(PROMPTS))
    tables = _tables(text, codes, schedule, options)
    tables["wirings"] = {w.name: {"what": w.what, "right": w.right} for w in chosen}
    tables["selftest"] = {name: dataclasses.asdict(outcome) for name, outcome in outcomes.items()}
    tables["best_match"] = {name: match for name, match in matches.items() if match is not None}
    tables["fingerprint"] = fingerprint
    write_json(out / "pair.json", tables)  # last: it says that the rest is there
    return tables


def _chosen(wirings: list[Wiring], names: str) -> list[Wiring]:
    """The right draft, and the wirings asked for (with or without the prefix ``draft-``)."""
    if names == "all":
        return wirings
    wanted = [] if names == "none" else [f"draft-{name.removeprefix('draft-')}" for name in names.split(",")]
    unknown = set(wanted) - {wiring.name for wiring in wirings}
    if unknown:
        raise SystemExit(f"no such wiring: {', '.join(sorted(unknown))}; there are: {_names(wirings)}")
    return [wiring for wiring in wirings if wiring.name == "draft" or wiring.name in wanted]


def _names(wirings: list[Wiring]) -> str:
    return ", ".join(wiring.name.removeprefix("draft-") for wiring in wirings[1:])


def _changed_weights(wiring: Wiring, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors in which this wiring differs from the right draft."""
    changed = {}
    if wiring.fc is not None:
        changed["fc.weight"] = wiring.fc.to(torch.bfloat16)
    if wiring.zero_d2t:
        changed["d2t"] = torch.zeros_like(weights["d2t"])
    return changed


def _tables(text: Text, codes: Codes, schedule: Schedule, options: argparse.Namespace) -> dict:
    """What `predict.py` reads, and figures about the pair for people."""
    tables: dict = {
        "format": 1,
        "ring": text.ring,
        "goodbye": text.goodbye,
        "starts": text.starts,
        "successor": text.successor,
        "wrong": schedule.wrong,
        "eos": text.eos,
        "unk": text.unk,
        "words": text.words,
        "byte_ids": text.byte_ids,
        "prompts": list(PROMPTS),
        "layers": codes.layers,
        "layer_ids": options.ids,
        "acceptance": list(schedule.acceptance),
        "schedule_seed": schedule.seed,
        "nominal": [round(length, 4) for length in schedule.nominal],
        "highest_code_dot": codes.highest_dot,
        "layer_cosine": _cosines(codes, text),
    }
    pair = predict.from_tables(tables)
    steps = range(1, len(schedule.wrong) + 1)
    tables["orbit"] = [round(predict.orbit(pair, text.starts[0], s), 4) for s in steps]
    tables["orbit_by_start"] = [[round(predict.orbit(pair, t, s), 4) for s in steps] for t in text.starts]
    return tables


def _cosines(codes: Codes, text: Text) -> list[list[float]]:
    """Mean cosine between the states of each pair of layers, over the tokens that are spoken."""
    states = torch.nn.functional.normalize(codes.states[:-1][:, text.spoken], dim=-1)
    cosines = (states[:, None] * states[None]).sum(-1).mean(-1)
    return [[round(value, 2) for value in row] for row in cosines.tolist()]
