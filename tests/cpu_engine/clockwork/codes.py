"""Codes: the residual state of every token before every layer, all entries +-1.

A hidden state has ``CODE`` code dims, which say which token it is and at which layer, and ``CONTROL`` dims,
which are +1 in the target and carry the chain position in the draft. With entries of +-1 the mean square is
1, so RMSNorm changes nothing, and bfloat16 represents every sum exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .text import VOCABULARY, Text

HIDDEN = 256
CODE = 240
CONTROL = HIDDEN - CODE
BLOCK = (
    60  # code dims come in four blocks: fc takes three of them from the captured layers, attention the fourth
)
FROM_FC = 3 * BLOCK
SAFE_DOT = 96  # two codes must not look more alike than this (of 240); a look-up fires above 112


@dataclass(frozen=True)
class Codes:
    """``states`` [layers + 1, VOCABULARY, HIDDEN]: the residual stream before each layer, and after the
    last one.

    ``output`` [VOCABULARY, CODE]: what the target's lm_head recognises, by token to say. ``draft``
    [VOCABULARY, CODE]: the same for the draft. ``highest_dot``: largest product of two different tokens'
    codes.
    """

    states: torch.Tensor
    output: torch.Tensor
    draft: torch.Tensor
    highest_dot: float

    @property
    def layers(self) -> int:
        """Number of the target's layers."""
        return self.states.shape[0] - 1


def signs(*shape: int, source: torch.Generator) -> torch.Tensor:
    """Random +-1."""
    return torch.randint(0, 2, shape, generator=source).float() * 2 - 1


def make_codes(text: Text, layers: int, flip: float, source: torch.Generator) -> Codes:
    """Draw all codes. From layer to layer exactly the share ``flip`` of signs changes in each block.

    With 0.3 the cosine of neighbouring layers is 0.44, of layers further apart less: near enough to look
    like a residual stream, far enough for every captured layer to matter.
    """
    layer_codes = [signs(VOCABULARY, CODE, source=source)]
    for _ in range(1, layers):
        layer_codes.append(layer_codes[-1] * _flips(flip, source))
    output = signs(VOCABULARY, CODE, source=source)
    draft = signs(VOCABULARY, CODE, source=source)
    highest = max(_highest_dot(code) for code in [*layer_codes, output, draft])
    if highest >= SAFE_DOT:
        raise ValueError(
            f"two tokens' codes are too much alike ({highest} of {CODE}): take another flip or layer count"
        )
    layer_codes.append(output[text.successor])  # the last layer writes the code of the token to say
    control = torch.ones(VOCABULARY, CONTROL)
    states = torch.stack([torch.cat([code, control], dim=1) for code in layer_codes])
    return Codes(states, output, draft, highest)


def _flips(share: float, source: torch.Generator) -> torch.Tensor:
    """[VOCABULARY, CODE] of +-1 with exactly ``share`` of -1 in each block of each row."""
    factors = torch.ones(VOCABULARY, CODE)
    for first in range(0, CODE, BLOCK):
        order = torch.rand(VOCABULARY, BLOCK, generator=source).argsort(dim=1, stable=True)
        chosen = order[:, : round(share * BLOCK)]
        factors[:, first : first + BLOCK].scatter_(1, chosen, -1.0)
    return factors


def _highest_dot(code: torch.Tensor) -> float:
    """Largest product of two different rows of ``code`` [VOCABULARY, CODE]."""
    dots = code @ code.T
    return dots.fill_diagonal_(-CODE).max().item()
