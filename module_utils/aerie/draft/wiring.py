"""Which layers a release captures for a target and a draft's ids: in eager mode, and inside CUDA graphs.

Pure functions over the tables of draft_families. ``docs/draft-rules.md`` shows them checked against the wheels.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .families import (
    DELEGATED_BY_FIX,
    GRAPH_BUG_FIRST,
    GRAPH_BUG_FIXED,
    GRAPH_FIX,
    Delegation,
    Family,
    at_least,
    family_of,
)
from .layer_ids import IdRule, default_indices, ids_for, outputs, served_order, shifted_default_indices


@dataclass(frozen=True)
class TargetRules:
    """How one target behaves in one release.

    rule: None where the target cannot capture; ``reason`` then says why. graph_keeps_ids: whether CUDA graphs capture
    the draft's ids (False: the default, whatever the ids). flags: layers are marked and never unmarked.
    """

    rule: IdRule | None
    source: str
    reason: str
    default: tuple[int, ...]
    last_index: int
    flags: bool
    graph_keeps_ids: bool
    delegation: Delegation | None = None
    known: bool = True


def delegation_of(architecture: str, release: str) -> Delegation | None:
    """The fix that this target needs in this release, or None."""
    for known in DELEGATED_BY_FIX:
        if known.architecture == architecture and at_least(release, known.first):
            return None if at_least(release, known.upstream) else known
    return None


def graph_keeps_ids(release: str, fixes: Collection[str]) -> bool:
    """Whether CUDA graphs capture the layers that the draft names.

    From 0.4.9 to 0.5.10.post1 ``CudaGraphRunner`` sets the default layers again before it captures, and the ids are
    applied after the graphs are made (fixed by PR #22836, first in 0.5.11). Up to 0.4.8.post1 no ids are read.
    """
    return GRAPH_FIX in fixes or not at_least(release, GRAPH_BUG_FIRST) or at_least(release, GRAPH_BUG_FIXED)


def target_rules(architecture: str, layers: int, release: str, fixes: Collection[str]) -> TargetRules:
    """The rules for a target architecture of ``layers`` layers in ``release`` with ``fixes`` applied."""
    family = family_of(architecture)
    delegation = delegation_of(architecture, release)
    if delegation is not None and delegation.fix in fixes:
        family = family_of(delegation.inner)
    era = family.era(release) if family is not None else None
    reason = "" if era else _why_not(family, delegation, architecture, release)
    default = (
        shifted_default_indices(layers) if family and family.shifted_default else default_indices(layers)
    )
    return TargetRules(
        rule=era.rule if era else None,
        source=era.source if era else (delegation.source if delegation else "srt/models of the release"),
        reason=reason,
        default=tuple(default),
        last_index=family.last_index(release, layers) if family else layers - 1,
        flags=family.flags(release) if family else False,
        graph_keeps_ids=graph_keeps_ids(release, fixes),
        delegation=delegation,
        known=family is not None,
    )


def _why_not(family: Family | None, delegation: Delegation | None, architecture: str, release: str) -> str:
    if delegation is not None:
        return (
            f"{architecture} of {release} does not pass set_eagle3_layers_to_capture on to the language model "
            f"inside it; the fix {delegation.fix} does ({delegation.source})"
        )
    if family is None:
        return f"{architecture} is not among the targets that are known to capture states in any release"
    if family.until and at_least(release, family.until):
        return f"{architecture} lost set_eagle3_layers_to_capture in {family.until}"
    return f"{architecture} has set_eagle3_layers_to_capture from {family.eras[0].since} on, not in {release}"


@dataclass(frozen=True)
class Wiring:
    """Loop indices in the order in which their states reach the draft. ``eager`` covers prefill in every server."""

    eager: tuple[int, ...]
    cuda_graph: tuple[int, ...]
    piled_up: bool = False

    def as_result(self) -> dict[str, dict[str, list[int]]]:
        """Both notations, as the module returns them."""
        return {
            mode: {"loop_index": list(indices), "output_of_layer": outputs(indices)}
            for mode, indices in (("eager", self.eager), ("cuda_graph", self.cuda_graph))
        }


def wiring(rules: TargetRules, ids: Sequence[int] | None, layers: int, *, cuda_graphs: bool) -> Wiring | None:
    """What is captured for ``ids`` (None: none reach the target). None where the target cannot capture.

    Only indices that the target's loop reaches are captured, each once, in ascending order.
    """
    if rules.rule is None:
        return None
    default = _reached(rules.default, rules.last_index)
    named = default if ids is None else _reached(rules.rule.indices(ids, layers), rules.last_index)
    if rules.graph_keeps_ids:
        return Wiring(named, named)
    # Marks set for the graphs stay when the draft's ids are marked afterwards.
    piled_up = rules.flags and cuda_graphs and set(named) != set(default)
    eager = tuple(served_order([*named, *default])) if piled_up else named
    return Wiring(eager, default, piled_up)


def _reached(indices: Sequence[int], last_index: int) -> tuple[int, ...]:
    return tuple(index for index in served_order(indices) if 0 <= index <= last_index)


def recommended(
    rules: TargetRules, training: Sequence[int] | None, layers: int
) -> tuple[list[int] | None, str]:
    """The ids to write so that the outputs ``training`` are captured, or None and the reason."""
    if training is None:
        return None, "training_layers is not given, so nobody can say which layers the draft was trained on"
    if rules.rule is None:
        return None, rules.reason
    return ids_for(rules.rule, training, layers, rules.last_index)
