#!/usr/bin/env python3
"""What the trained target's layers give for a prompt, worked out in plain PyTorch: `tests/gpu/reference.py --help`.

An independent computation to compare the served hidden states with: the weights are read from the checkpoint, and
the Llama is written out here from its definition, in float32, without SGLang, transformers or a fused kernel. The
file that it writes has `input_ids` and one tensor `layer_<n>` [tokens, hidden] for each output asked for.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

# None of the gate's prompts, so that no prefix of it is cached.
PROMPT = """class Sensor(Base):
    # Last value and its time, in seconds.
    def update(self, reading, now):
        if reading is None:
            raise TypeError("no reading at %r" % now)
        self.values.append((now, float(reading)))
        return len(self.values)

"""
# The layers on whose outputs the pair's draft was trained: SGLang's default for 16 layers, [2, 8, 13], by output.
TRAINED = (1, 7, 12)


def rms_norm(x: Any, weight: Any, epsilon: float) -> Any:
    return x * (x.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt() * weight


def rotate(x: Any, theta: float) -> Any:
    """Rotary position embedding of [tokens, heads, head_dim], halves rotated as in Hugging Face checkpoints."""
    import torch

    half = x.shape[-1] // 2
    frequencies = theta ** -(torch.arange(half, dtype=torch.float32) / half)
    angles = torch.arange(x.shape[0], dtype=torch.float32)[:, None, None] * frequencies
    first, second = x[..., :half], x[..., half:]
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def attention(x: Any, weights: dict[str, Any], prefix: str, config: dict[str, Any]) -> Any:
    """Causal attention of [tokens, hidden], key and value heads shared by groups of query heads."""
    import torch

    tokens, heads = x.shape[0], config["num_attention_heads"]
    shared = config.get("num_key_value_heads", heads)
    size = config.get("head_dim") or config["hidden_size"] // heads
    theta = config.get("rope_theta", 10000.0)
    query = rotate((x @ weights[f"{prefix}.q_proj.weight"].T).view(tokens, heads, size), theta)
    key = rotate((x @ weights[f"{prefix}.k_proj.weight"].T).view(tokens, shared, size), theta)
    value = (x @ weights[f"{prefix}.v_proj.weight"].T).view(tokens, shared, size)
    key, value = (one.repeat_interleave(heads // shared, dim=1) for one in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) / size**0.5
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    mixed = torch.einsum("hqk,khd->qhd", scores.masked_fill(future, float("-inf")).softmax(-1), value)
    return mixed.reshape(tokens, heads * size) @ weights[f"{prefix}.o_proj.weight"].T


def mlp(x: Any, weights: dict[str, Any], prefix: str) -> Any:
    import torch

    gate = torch.nn.functional.silu(x @ weights[f"{prefix}.gate_proj.weight"].T)
    return (gate * (x @ weights[f"{prefix}.up_proj.weight"].T)) @ weights[f"{prefix}.down_proj.weight"].T


def layer_outputs(weights: dict[str, Any], config: dict[str, Any], ids: list[int]) -> list[Any]:
    """The residual sum after each layer, [tokens, hidden] in float32, for one prompt."""
    import torch

    full = {name: tensor.float() for name, tensor in weights.items()}
    epsilon = config["rms_norm_eps"]
    x = full["model.embed_tokens.weight"][torch.tensor(ids)]
    outputs = []
    for number in range(config["num_hidden_layers"]):
        name = f"model.layers.{number}"
        normed = rms_norm(x, full[f"{name}.input_layernorm.weight"], epsilon)
        x = x + attention(normed, full, f"{name}.self_attn", config)
        normed = rms_norm(x, full[f"{name}.post_attention_layernorm.weight"], epsilon)
        x = x + mlp(normed, full, f"{name}.mlp")
        outputs.append(x)
    return outputs


def write(target: Path, prompt: str, layers: list[int], out: Path) -> list[int]:
    """Write the reference for ``prompt``; returns its token ids."""
    import torch
    from safetensors.torch import load_file, save_file
    from tokenizers import Tokenizer

    config = json.loads((target / "config.json").read_text())
    if config["architectures"] != ["LlamaForCausalLM"] or config.get("rope_scaling"):
        raise SystemExit(f"reference: {target} is no plain Llama")
    ids = Tokenizer.from_file(str(target / "tokenizer.json")).encode(prompt).ids
    outputs = layer_outputs(load_file(target / "model.safetensors"), config, ids)
    tensors = {f"layer_{number}": outputs[number].contiguous() for number in layers}
    out.parent.mkdir(parents=True, exist_ok=True)
    save_file(
        {"input_ids": torch.tensor(ids), **tensors},
        str(out),
        metadata={"made_by": "tests/gpu/reference.py, plain PyTorch, float32"},
    )
    out.chmod(0o644)  # the service user reads it
    return ids


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", type=Path, required=True, help="directory of the target")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument(
        "--layers", default=",".join(map(str, TRAINED)), help="layer outputs, in training's order"
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    layers = [int(number) for number in options.layers.split(",")]
    ids = write(options.target, options.prompt, layers, options.out)
    print(f"reference: outputs of layers {options.layers} for {len(ids)} tokens in {options.out}")


if __name__ == "__main__":
    main()
