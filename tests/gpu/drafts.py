#!/usr/bin/env python3
"""Wrongly wired drafts, made from the right one: the same weights with other layer ids, and weights that are wrong.

The ids-only ones and their accept lengths on an H200 are the table of the README; `fc-reversed` and `random` need
weights of their own, made here on the machine, so that they need not be carried.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

RIGHT = "draft-right"
# Layer ids as draft configs write them: output of layer j. None: no ids at all.
IDS: dict[str, list[int] | None] = {
    "draft-none": None,
    "draft-off-by-one": [2, 8, 13],
    "draft-shifted": [4, 10, 9],
    "draft-deep": [12, 13, 14],
    "draft-shallow": [0, 1, 2],
}
WEIGHTS = ("draft-fc-reversed", "draft-random")


def with_ids(config: dict[str, Any], ids: list[int] | None) -> dict[str, Any]:
    """The draft's config with other layer ids, or with none."""
    made = {name: value for name, value in config.items() if name != "eagle_config"}
    if ids is not None:
        made["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}
    return made


def reversed_blocks(tensor: Any, blocks: int) -> Any:
    """``fc.weight`` [H, K * H] with its K column blocks in reverse order."""
    import torch

    return torch.cat(list(reversed(tensor.chunk(blocks, dim=1))), dim=1).contiguous()


def randomised(tensors: dict[str, Any]) -> dict[str, Any]:
    """The same shapes with random weights; vocabulary maps and norms stay, so that only what was learned is gone."""
    import torch

    generator = torch.Generator().manual_seed(0)
    made = {}
    for name, tensor in tensors.items():
        learned = tensor.is_floating_point() and tensor.dim() == 2
        noise = torch.randn(tensor.shape, generator=generator) * 0.02 if learned else tensor
        made[name] = noise.to(tensor.dtype)
    return made


def make(models: Path) -> list[str]:
    """Make every wrong draft under ``models`` that is not there; returns the names of those made."""
    right = models / RIGHT
    config = json.loads((right / "config.json").read_text())
    done = []
    for name in (*IDS, *WEIGHTS):
        if (models / name / "model.safetensors").exists():
            continue
        shutil.rmtree(models / name, ignore_errors=True)
        (models / name).mkdir()
        made = with_ids(config, IDS[name]) if name in IDS else config
        (models / name / "config.json").write_text(json.dumps(made, indent=1))
        _weights(right, models / name)
        done.append(name)
    return done


def _weights(right: Path, draft: Path) -> None:
    target = draft / "model.safetensors"
    if draft.name not in WEIGHTS:
        shutil.copyfile(right / "model.safetensors", target)
        return
    from safetensors.torch import load_file, save_file

    tensors = load_file(right / "model.safetensors")
    if draft.name == "draft-random":
        tensors = randomised(tensors)
    else:
        blocks = tensors["fc.weight"].shape[1] // tensors["fc.weight"].shape[0]
        tensors["fc.weight"] = reversed_blocks(tensors["fc.weight"], blocks)
    save_file(tensors, str(target), metadata={"format": "pt"})
    target.chmod(0o644)  # the service user reads it


if __name__ == "__main__":
    print(f"drafts: made {', '.join(make(Path(sys.argv[1]))) or 'none, all are there'}")
