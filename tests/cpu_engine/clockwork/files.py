"""Write the pair: model directories, the truth for every layer, the tables for `predict.py`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from .codes import Codes
from .text import CHAT_TEMPLATE, CONTEXT

FILE_MODE, DIRECTORY_MODE = 0o644, 0o755  # a service user must be able to read all of it

# What transformers 5.12.1 writes for a tokenizer without a class of its own.
TOKENIZER_CONFIG = {
    "backend": "tokenizers",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "model_max_length": CONTEXT,
    "pad_token": "<pad>",
    "tokenizer_class": "TokenizersBackend",
    "unk_token": "<unk>",
}


def write_json(path: Path, content: object) -> None:
    """JSON with a final newline, readable by all."""
    path.write_text(json.dumps(content, indent=1) + "\n")
    path.chmod(FILE_MODE)


def write_model(
    directory: Path, config: dict[str, object], tokenizer: Tokenizer, weights: dict[str, torch.Tensor]
) -> Path:
    """A model directory with configuration, tokenizer and weights; returns the path of the weights."""
    write_model_files(directory, config, tokenizer)
    path = directory / "model.safetensors"
    save_file(
        {name: weight.contiguous() for name, weight in weights.items()}, path, metadata={"format": "pt"}
    )
    path.chmod(FILE_MODE)
    return path


def write_model_files(directory: Path, config: dict[str, object], tokenizer: Tokenizer) -> None:
    """Everything of a model directory except the weights."""
    directory.mkdir()
    directory.chmod(DIRECTORY_MODE)
    write_json(directory / "config.json", config)
    write_json(directory / "tokenizer_config.json", TOKENIZER_CONFIG)
    for name, text in (
        ("tokenizer.json", tokenizer.to_str(pretty=True)),
        ("chat_template.jinja", CHAT_TEMPLATE),
    ):
        (directory / name).write_text(text)
        (directory / name).chmod(FILE_MODE)


def link_weights(source: Path, directory: Path) -> None:
    """Give a directory the same weights as another one without storing them twice."""
    os.link(source, directory / "model.safetensors")


def as_bfloat16(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Convert; AssertionError when a value would be rounded."""
    converted = {}
    for name, weight in weights.items():
        converted[name] = weight.to(torch.bfloat16)
        if not torch.equal(converted[name].float(), weight):
            raise AssertionError(f"{name} loses something in bfloat16")
    return converted


def write_states(path: Path, codes: Codes) -> None:
    """``states`` int8 [layers + 1, vocabulary, hidden]: the residual stream before each layer, by token."""
    save_file({"states": codes.states.to(torch.int8)}, path)
    path.chmod(FILE_MODE)
