"""Make tiny model directories for the draft check: a config and a safetensors header over a sparse file."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from ansible.module_utils.aerie.draft.case import Settings
from ansible.module_utils.aerie.draft.check import Report, check

SIZES = {"BF16": 2, "I64": 8, "F32": 4, "BOOL": 1}
HIDDEN, VOCAB, DRAFT_VOCAB = 7168, 1000, 10
TARGETS = [5, 6, 7, 20, 21, 300, 301, 400, 998, 999]  # target tokens that the draft knows
D2T = [target - draft for draft, target in enumerate(TARGETS)]

DEEPSEEK: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 61,
    "hidden_size": HIDDEN,
    "vocab_size": VOCAB,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
KIMI: dict[str, Any] = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": DEEPSEEK}
LLAMA8: dict[str, Any] = {**DEEPSEEK, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 8}


def draft_config(ids: Any = None, **changes: Any) -> dict[str, Any]:
    """The config of a Llama-shaped draft. ``ids``: what to write into eagle_config; left out when None."""
    nested: dict[str, Any] = {"use_aux_hidden_state": True}
    if ids is not None:
        nested["eagle_aux_hidden_state_layer_ids"] = ids
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "eagle_config": nested,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ...}


def draft_tensors(**changes: Any) -> dict[str, Any]:
    """Tensors of that draft: name to (dtype, shape, values or None). ``...`` as a value leaves the tensor out."""
    tensors: dict[str, Any] = {
        "fc.weight": ("BF16", [HIDDEN, 3 * HIDDEN], None),
        "lm_head.weight": ("BF16", [DRAFT_VOCAB, HIDDEN], None),
        "midlayer.self_attn.q_proj.weight": ("BF16", [64, 2 * HIDDEN], None),
        "norm.weight": ("BF16", [HIDDEN], None),
        "d2t": ("I64", [DRAFT_VOCAB], D2T),
        "t2d": ("BOOL", [VOCAB], [token in TARGETS for token in range(VOCAB)]),
    }
    tensors.update({name.replace("__", "."): value for name, value in changes.items()})
    return {name: value for name, value in tensors.items() if value is not ...}


def write_safetensors(file: Path, tensors: dict[str, Any]) -> None:
    """A header, and data that is a hole in the file except for given values."""
    header, offset, values = {}, 0, []
    for name, (dtype, shape, given) in tensors.items():
        length = SIZES[dtype]
        for size in shape:
            length *= size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + length]}
        if given is not None:
            values.append((offset, struct.pack(f"<{len(given)}{'q' if dtype == 'I64' else 'B'}", *given)))
        offset += length
    text = json.dumps(header).encode()
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        start = stream.tell()
        for begin, data in values:
            stream.seek(start + begin)
            stream.write(data)
        stream.truncate(start + offset)


def write_model(path: Path, config: dict[str, Any], tensors: dict[str, Any]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_safetensors(path / "model.safetensors", tensors)
    return path


def report(
    tmp_path: Path,
    release: str,
    *,
    target: dict[str, Any] = DEEPSEEK,
    config: dict[str, Any] | None = None,
    ids: Any = None,
    tensors: dict[str, Any] | None = None,
    **settings: Any,
) -> Report:
    """Write both models and judge them."""
    target_dir = write_model(tmp_path / "target", target, {"model.norm.weight": ("BF16", [HIDDEN], None)})
    draft_dir = write_model(
        tmp_path / "draft",
        draft_config(ids) if config is None else config,
        draft_tensors() if tensors is None else tensors,
    )
    return check(Settings(target=target_dir, draft=draft_dir, release=release, **settings))


def problems(result: Report) -> list[str]:
    return [finding.code for finding in result.problems]


def warnings(result: Report) -> list[str]:
    return [finding.code for finding in result.warnings]
