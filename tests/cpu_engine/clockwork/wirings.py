"""The same draft wired wrongly, and how far each wiring is from firing, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .codes import CODE, HIDDEN, Codes
from .draft import STEP_LOW, Draft, captured_layers
from .text import Text

ORDERS = ((1, 0, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0), (2, 0, 1))


@dataclass(frozen=True)
class Wiring:
    """One draft directory. Fields that are None are as in the right draft.

    ``captured``: index into `Codes.states` per segment, None where the hidden state has another width.
    """

    name: str
    what: str
    right: bool
    layer_ids: list[int] | None
    captured: list[int] | None
    fc: torch.Tensor | None = None
    use_aux_hidden_state: bool = True
    zero_d2t: bool = False


def make_wirings(draft: Draft, layer_ids: list[int], layers: int) -> list[Wiring]:
    """The right draft first, then the wrong and control ones."""
    first, middle, last = layer_ids
    moved = [("shift+1", "every layer id one too high", [i + 1 for i in layer_ids])]
    if first > 0:
        moved.append(("shift-1", "every layer id one too low", [i - 1 for i in layer_ids]))
    for position in range(3):
        ids = [i + (index == position) for index, i in enumerate(layer_ids)]
        if len(set(ids)) == 3:
            moved.append((f"one{position}+1", f"layer id number {position + 1} one too high", ids))
    right = captured_layers(layer_ids)
    wirings = [
        Wiring("draft", "the right wiring", True, layer_ids, right),
        Wiring(
            "draft-idorder",
            "ids in another order (captured in layer order)",
            True,
            [last, first, middle],
            right,
        ),
        *(Wiring(f"draft-{name}", what, False, ids, captured_layers(ids)) for name, what, ids in moved),
        Wiring("draft-default", "no ids: SGLang's defaults", False, None, [2, layers // 2, layers - 3]),
        Wiring(
            "draft-noaux", "use_aux_hidden_state: false", False, layer_ids, None, use_aux_hidden_state=False
        ),
        Wiring("draft-d2t0", "d2t all zero", False, layer_ids, None, zero_d2t=True),
    ]
    for order in ORDERS:
        name = "".join(map(str, order))
        what = f"fc blocks in the order {name}"
        wirings.append(
            Wiring(f"draft-perm-{name}", what, False, layer_ids, right, permuted_fc(draft.fc, order))
        )
    return wirings


def permuted_fc(fc: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """fc with its three column blocks in another order; the control rows stay, as they do not identify a layer."""
    blocks = fc.split(HIDDEN, dim=1)
    permuted = torch.cat([blocks[i] for i in order], dim=1)
    permuted[CODE:] = fc[CODE:]
    return permuted


def best_match(draft: Draft, codes: Codes, text: Text, wiring: Wiring) -> float | None:
    """Best match that any row reaches at the root, over all tokens: 272 is perfect, above 252 fires.

    None where the wiring cannot be told in this form.
    """
    if wiring.captured is None:
        return None
    hidden = torch.cat([codes.states[layer] for layer in wiring.captured], dim=1)
    fc = draft.fc if wiring.fc is None else wiring.fc
    assembled = draft.add_embedding(hidden @ fc.T, text.successor)
    return (assembled @ draft.gate[: draft.rows].T).max().item() / 2 + STEP_LOW
