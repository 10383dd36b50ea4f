"""What a list of layer ids means: the rules by which SGLang turns a draft's ids into captured layers.

Two notations are mixed up in the field, so this file keeps them apart:

* loop index ``i``: SGLang captures what enters layer ``i``;
* output of layer ``i - 1``: the same tensor, as training code names it. Layer outputs count from 0.

Capture goes by layer: whatever the order of the ids, the draft gets the states in ascending order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class IdRule:
    """One way to read ids. ``indices(ids, layers)`` gives the loop indices in the order of the ids."""

    name: str
    meaning: str
    indices: Callable[[Sequence[int], int], list[int]]
    takes_ids: bool = True


def default_indices(layers: int) -> list[int]:
    """What every target captures when no ids reach it: ``[2, n//2, n-3]``, a list of loop indices.

    Source: ``set_eagle3_layers_to_capture(None)`` in all releases from 0.4.4.post2 (PR #4247) on.
    """
    return [2, layers // 2, layers - 3]


def shifted_default_indices(layers: int) -> list[int]:
    """The default of minimax_m3_vl alone (0.5.18 on): one layer later than everywhere else."""
    return [index + 1 for index in default_indices(layers)]


def _plus_one(ids: Sequence[int], layers: int) -> list[int]:
    return [item + 1 for item in ids]


def _plus_one_if_first_is_one(ids: Sequence[int], layers: int) -> list[int]:
    return _plus_one(ids, layers) if ids and ids[0] == 1 else list(ids)


def _as_is_if_the_end_is_named(ids: Sequence[int], layers: int) -> list[int]:
    return list(ids) if ids and max(ids) == layers else _plus_one(ids, layers)


NO_IDS = IdRule(
    "no-ids",
    "ids are not read; the default is captured",
    lambda ids, layers: default_indices(layers),
    takes_ids=False,
)
PLUS_ONE = IdRule("plus-one", "id j captures the output of layer j", _plus_one)
PLUS_ONE_IF_FIRST_IS_ONE = IdRule(
    "plus-one-if-first-is-1",
    "a list that begins with 1 names outputs (id j: output of layer j); any other list names loop indices "
    "(id j: output of layer j - 1)",
    _plus_one_if_first_is_one,
)
AS_IS_IF_THE_END_IS_NAMED = IdRule(
    "as-is-if-end-is-named",
    "a list whose largest id is the number of layers names loop indices; any other list names outputs",
    _as_is_if_the_end_is_named,
)


def outputs(indices: Sequence[int]) -> list[int]:
    """Loop indices as layer outputs; -1 stands for the embedding."""
    return [index - 1 for index in indices]


def served_order(indices: Sequence[int]) -> list[int]:
    """The indices in the order in which the states reach the draft: each once, ascending."""
    return sorted(set(indices))


def ids_for(
    rule: IdRule, training: Sequence[int], layers: int, last_index: int
) -> tuple[list[int] | None, str]:
    """The ids that make ``rule`` capture the layer outputs ``training``, or None and the reason.

    ``last_index``: highest loop index that the target reaches. The training numbers themselves are preferred, because
    they then mean the same in every release.
    """
    wanted = [layer + 1 for layer in training]
    if list(wanted) != served_order(wanted):
        return None, "states are served in ascending layer order, each once; this order cannot be served"
    if wanted and wanted[0] < 1:
        return None, "the embedding (before layer 0) is no captured state in any release"
    if wanted and wanted[-1] > last_index:
        return None, f"the target's loop ends before the output of layer {wanted[-1] - 1} can be captured"
    if not rule.takes_ids:
        if wanted == default_indices(layers):
            return list(training), ""
        return (
            None,
            f"this release takes no ids and captures the outputs of {outputs(default_indices(layers))} only",
        )
    for candidate in (list(training), wanted):
        if rule.indices(candidate, layers) == wanted:
            return candidate, ""
    return None, (
        f"{rule.meaning}: no ascending list means the outputs {list(training)}. {_swapped(rule, wanted, layers)}"
    ).strip()


def _swapped(rule: IdRule, wanted: list[int], layers: int) -> str:
    """A list out of order that would do it by the rule; said, never written by itself."""
    if len(wanted) < 2:
        return ""
    swapped = [wanted[1], wanted[0], *wanted[2:]]
    if rule.indices(swapped, layers) != swapped:
        return ""
    return f"By the rule {swapped} (out of order) would; prove it with debug.yml before relying on it"
