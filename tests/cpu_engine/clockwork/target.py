"""The target: a LlamaForCausalLM whose MLPs are look-up tables from each layer's code to the next layer's."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .codes import CODE, CONTROL, HIDDEN, Codes, signs
from .text import CONTEXT, VOCABULARY, Text

FIRED = 64.0  # gate of the neuron whose token is present
GATE = 0.5
THRESHOLD = 112  # code dims: 0.5 * (240 - 112) = 64; at 112 a small error of scale does not grow
Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Heads:
    """Attention shape, the same in target and draft."""

    heads: int = 2
    kv_heads: int = 2
    head_dim: int = 64

    @property
    def query_dims(self) -> int:
        """Width of q."""
        return self.heads * self.head_dim

    @property
    def kv_dims(self) -> int:
        """Width of k and of v."""
        return self.kv_heads * self.head_dim


def attention_noise(heads: Heads, inputs: int, source: torch.Generator) -> Weights:
    """Attention that runs on real numbers but writes nothing: random q, k and v, zero o."""
    return {
        "q_proj.weight": signs(heads.query_dims, inputs, source=source) / 64,
        "k_proj.weight": signs(heads.kv_dims, inputs, source=source) / 64,
        "v_proj.weight": signs(heads.kv_dims, inputs, source=source) / 64,
        "o_proj.weight": torch.zeros(HIDDEN, heads.query_dims),
    }


def target_weights(codes: Codes, heads: Heads, source: torch.Generator) -> Weights:
    """All tensors, float32 (written as bfloat16, which holds them exactly)."""
    weights: Weights = {
        "model.embed_tokens.weight": codes.states[0],
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": torch.cat([codes.output / 8, torch.zeros(VOCABULARY, CONTROL)], dim=1),
    }
    for layer in range(codes.layers):
        prefix = f"model.layers.{layer}."
        parts = {f"self_attn.{name}": w for name, w in attention_noise(heads, HIDDEN, source).items()}
        parts |= {f"mlp.{name}": w for name, w in _table(codes, layer).items()}
        parts |= {
            name: torch.ones(HIDDEN) for name in ("input_layernorm.weight", "post_attention_layernorm.weight")
        }
        weights |= {prefix + name: weight for name, weight in parts.items()}
    return weights


def _table(codes: Codes, layer: int) -> Weights:
    """MLP with one neuron per token: it fires for its token alone and adds the next state minus this one."""
    control = torch.ones(VOCABULARY, CONTROL)
    here, following = codes.states[layer], codes.states[layer + 1]
    return {
        "gate_proj.weight": torch.cat(
            [here[:, :CODE] * GATE, control * (-GATE * THRESHOLD / CONTROL)], dim=1
        ),
        "up_proj.weight": torch.cat([torch.zeros(VOCABULARY, CODE), control / CONTROL], dim=1),
        "down_proj.weight": ((following - here) / FIRED).T,
    }


def base_config(text: Text, heads: Heads) -> dict[str, object]:
    """What the configurations of target and draft share."""
    return {
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_attention_heads": heads.heads,
        "num_key_value_heads": heads.kv_heads,
        "head_dim": heads.head_dim,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "bos_token_id": text.bos,
        "eos_token_id": text.eos,
        "pad_token_id": text.pad,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "attention_bias": False,
        "mlp_bias": False,
        "use_cache": True,
    }


def target_config(text: Text, codes: Codes, heads: Heads) -> dict[str, object]:
    """config.json of the target."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "intermediate_size": VOCABULARY,
        "num_hidden_layers": codes.layers,
        **base_config(text, heads),
    }
