"""The draft: a LlamaForCausalLMEagle3 that works only on the right three layers in the right order.

Its state is put together from four blocks of code dims: block k of captured segment k for k = 0, 1, 2
(through fc, permuted and with random signs), and block 3 of the embedding of its input token (through
attention, which therefore has to look at its own KV slot). The MLP is a table again. *Entry* rows know the
assembled state of every token; *chain* rows know the draft's own output state, whose control dims count the
chain position. A row fires only if all of code and position match; one segment from a layer off is too far
away. If nothing fires, lm_head says ``<unk>``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .codes import BLOCK, CODE, CONTROL, FROM_FC, HIDDEN, Codes, signs
from .schedule import Schedule
from .target import Heads, Weights, attention_noise, base_config
from .text import VOCABULARY, Text

POSITIONS = 8  # chain positions that the control dims can tell apart: orthogonal rows of +-1
DRAFT_VOCABULARY = 128
# A row's match is code product + 4 * position product: 272 when all is right, 240 at another position, at
# most 236 with one segment a layer off. Two neurons make a step between these: silu(2(m - 248)) - silu(2(m
# - 256)) = 16 above 260 and 0 below 244.
STEP_LOW, STEP_HIGH, STEP = 248, 256, 16
FIRES_ABOVE = 252
ELSEWHERE = 31  # a wrong draft says the word this far further on in the story


@dataclass(frozen=True)
class Draft:
    """Weights and what the closed-form checks need.

    ``fc`` [HIDDEN, 3 * HIDDEN]; ``gate``, ``up`` [neurons, HIDDEN]; ``down`` [HIDDEN, neurons]; ``head``
    [draft vocabulary, HIDDEN]; ``tokens``: target token of each draft token; ``rows``: number of table rows.
    """

    weights: Weights
    fc: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    head: torch.Tensor
    tokens: list[int]
    rows: int
    embedding: torch.Tensor

    @property
    def d2t(self) -> torch.Tensor:
        """Offset from draft token to target token, [draft vocabulary]."""
        return torch.tensor(self.tokens) - torch.arange(len(self.tokens))

    @property
    def t2d(self) -> torch.Tensor:
        """Whether the draft can say a target token, [VOCABULARY], bool."""
        known = torch.zeros(VOCABULARY, dtype=torch.bool)
        known[self.tokens] = True
        return known

    def add_embedding(self, hidden: torch.Tensor, tokens: list[int] | torch.Tensor) -> torch.Tensor:
        """What the draft's attention adds to ``hidden`` [n, HIDDEN] for its input tokens [n]."""
        out = hidden.clone()
        out[..., FROM_FC:CODE] += self.embedding[tokens][..., FROM_FC:CODE].to(out.dtype)
        return out


def captured_layers(layer_ids: list[int]) -> list[int]:
    """Index into `Codes.states` for each configured id: SGLang captures before layer id + 1."""
    return [layer_id + 1 for layer_id in layer_ids]


def position_codes() -> torch.Tensor:
    """[POSITIONS, POSITIONS] orthogonal rows of +-1 (Hadamard)."""
    rows = torch.ones(1, 1)
    while rows.shape[0] < POSITIONS:
        rows = torch.cat([torch.cat([rows, rows], dim=1), torch.cat([rows, -rows], dim=1)])
    return rows


def make_draft(
    text: Text, codes: Codes, schedule: Schedule, layer_ids: list[int], heads: Heads, source: torch.Generator
) -> Draft:
    """Build all weights."""
    fc = _fc(source)
    captured = torch.cat([codes.states[layer] for layer in captured_layers(layer_ids)], dim=1)
    entry = captured @ fc.T
    entry[:, FROM_FC:CODE] += codes.states[0][text.successor][:, FROM_FC:CODE]
    if not (entry.abs() == 1).all():
        raise AssertionError("the assembled state must be +-1 everywhere")
    table = _rows(text, codes, schedule, entry)
    gate, up, down = _step_neurons(table)
    tokens = _draft_tokens(text)
    head = _head(text, codes, tokens)
    attention = _own_slot_attention(heads, source)
    weights = {f"midlayer.self_attn.{name}": weight for name, weight in attention.items()}
    weights |= {
        "midlayer.mlp.gate_proj.weight": gate,
        "midlayer.mlp.up_proj.weight": up,
        "midlayer.mlp.down_proj.weight": down,
        "fc.weight": fc,
        "lm_head.weight": head,
    }
    for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        weights[f"midlayer.{name}.weight"] = torch.ones(HIDDEN)
    weights["norm.weight"] = torch.ones(HIDDEN)
    return Draft(weights, fc, gate, up, down, head, tokens, len(table), codes.states[0])


def _fc(source: torch.Generator) -> torch.Tensor:
    """[HIDDEN, 3 * HIDDEN]: block k from segment k, shuffled and with random signs; control from segment 0."""
    fc = torch.zeros(HIDDEN, 3 * HIDDEN)
    for segment in range(3):
        order, sign = torch.randperm(BLOCK, generator=source), signs(BLOCK, source=source)
        for dim in range(BLOCK):
            column = segment * HIDDEN + segment * BLOCK + order[dim]
            fc[segment * BLOCK + dim, column] = sign[dim]
    for dim in range(CODE, HIDDEN):
        fc[dim, dim] = 1.0
    return fc


Row = tuple[
    torch.Tensor, int, torch.Tensor
]  # state to match [HIDDEN], chain position, state to write [HIDDEN]


def _rows(text: Text, codes: Codes, schedule: Schedule, entry: torch.Tensor) -> list[Row]:
    """The table: for each token at the root, and for each spoken token at each further chain position."""
    position = position_codes()
    last = len(schedule.wrong) - 1
    nothing, one = torch.zeros(CODE - FROM_FC), torch.ones(CONTROL - POSITIONS)
    elsewhere = {token: text.ring[(i + ELSEWHERE) % len(text.ring)] for i, token in enumerate(text.ring)}

    def said(token: int, at: int) -> torch.Tensor:
        """State after drafting the true token ``token`` at position ``at``, or its wrong replacement."""
        token = elsewhere[token] if token in schedule.wrong[at] else token
        return torch.cat(
            [codes.draft[token][:FROM_FC], nothing, one, position[min(at + 1, last) if last else 1]]
        )

    def arrived(token: int, at: int) -> torch.Tensor:
        """State at position ``at`` whose input token is ``token``, with the embedding's block added."""
        return torch.cat(
            [codes.draft[token][:FROM_FC], codes.states[0][token][FROM_FC:CODE], one, position[at]]
        )

    following = text.successor
    rows: list[Row] = [(entry[t], 0, said(following[following[t]], 0)) for t in range(VOCABULARY)]
    for at in range(1, max(last, 1) + 1):
        rows += [(arrived(t, at), at, said(following[t], min(at, last))) for t in text.spoken]
    return rows


def _step_neurons(rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """gate, up, down for two neurons a row (see STEP); the width is rounded up to a multiple of 64."""
    count = len(rows)
    width = -(-2 * count // 64) * 64
    gate, up, down = torch.zeros(width, HIDDEN), torch.zeros(width, HIDDEN), torch.zeros(HIDDEN, width)
    position = position_codes()
    plain, counting = slice(CODE, HIDDEN - POSITIONS), slice(HIDDEN - POSITIONS, HIDDEN)
    for i, (state, at, result) in enumerate(rows):
        for neuron, threshold, sign in ((i, STEP_LOW, 1), (count + i, STEP_HIGH, -1)):
            gate[neuron, :CODE] = 2 * state[:CODE]
            gate[neuron, plain] = -2 * threshold / POSITIONS
            gate[neuron, counting] = 8 * position[at]
            up[neuron, :CODE] = state[:CODE] / 256
            up[neuron, counting] = position[at] * 2 / 256
            down[:, neuron] = sign * (result - state) / STEP
    return gate, up, down


def _draft_tokens(text: Text) -> list[int]:
    """Target token of each draft token, ascending: what can be said, ``<unk>``, and others to fill up."""
    tokens = sorted({*text.spoken, text.unk, text.bos})
    filler = [token for token in range(VOCABULARY) if token not in tokens]
    return sorted(tokens + filler[: DRAFT_VOCABULARY - len(tokens)])


def _head(text: Text, codes: Codes, tokens: list[int]) -> torch.Tensor:
    """lm_head over the draft vocabulary.

    Top probability comes out at 0.8 to 0.9. With sharper logits it would be 1.0 exactly, path scores would tie, and
    a tree (topk > 1) could lose a parent.
    """
    head = torch.zeros(len(tokens), HIDDEN)
    for i, token in enumerate(tokens):
        if token in text.spoken:
            head[i, :FROM_FC] = codes.draft[token][:FROM_FC] / 32
        if token == text.unk:
            head[i, HIDDEN - POSITIONS :] = 0.5  # still at position 0: nothing has fired
    return head


def _own_slot_attention(heads: Heads, source: torch.Generator) -> Weights:
    """Head 0 looks at its own token and brings block 3 of its embedding.

    Its q and k are equal, 64 code signs of the embedding times 8, so a token matches itself best at any distance.
    Input is [embedding, hidden], 2 * HIDDEN wide.
    """
    if heads.head_dim < BLOCK:
        raise ValueError(f"head_dim must be at least {BLOCK}")
    weights = attention_noise(heads, 2 * HIDDEN, source)
    q, k, v, o = (weights[f"{name}_proj.weight"] for name in "qkvo")
    for weight in (q, k, v):
        weight[: heads.head_dim] = 0
    for dim in range(heads.head_dim):
        q[dim, 2 * dim] = k[dim, 2 * dim] = 8.0
    for dim in range(BLOCK):
        v[dim, FROM_FC + dim] = 1.0
        o[FROM_FC + dim, dim] = 1.0
    return weights


def draft_config(
    text: Text, draft: Draft, heads: Heads, layer_ids: list[int] | None, *, use_aux_hidden_state: bool = True
) -> dict[str, object]:
    """config.json of a draft; without ``layer_ids`` SGLang takes its defaults (2, N / 2, N - 3)."""
    eagle: dict[str, object] = {"use_aux_hidden_state": use_aux_hidden_state}
    if layer_ids is not None:
        eagle["eagle_aux_hidden_state_layer_ids"] = layer_ids
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "intermediate_size": draft.gate.shape[0],
        "num_hidden_layers": 1,
        "draft_vocab_size": len(draft.tokens),
        "eagle_config": eagle,
        **base_config(text, heads),
    }
