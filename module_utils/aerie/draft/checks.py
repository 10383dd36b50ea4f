"""The list of checks. Add one here: a function of a :class:`Case` that yields findings, and its test.

A check looks at one thing, says nothing when it has nothing to say, and never raises. Codes are stable: people search
for them and name them in ``accept``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import checks_ids as ids
from . import checks_settings as settings
from . import checks_vocabulary as vocabulary
from . import checks_weights as weights
from .case import Case, Finding

CHECKS: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    # The pair and the release
    settings.release_has_eagle3,
    weights.algorithm_fits_draft,
    weights.draft_class_is_known,
    ids.target_captures,
    # The layer ids
    ids.ids_are_found,
    ids.ids_are_numbers,
    ids.ids_are_read,
    ids.ids_in_range,
    ids.ids_are_unique,
    ids.ids_are_ordered,
    ids.training_can_be_served,
    ids.layers_are_the_trained_ones,
    ids.graphs_capture_the_same,
    ids.meaning_is_known,
    ids.aux_states_are_used,
    ids.rewriting_is_said,
    # The checkpoints
    weights.weight_files_are_whole,
    weights.draft_layers_load,
    weights.fc_fits_the_states,
    weights.hidden_sizes_agree,
    vocabulary.vocabularies_agree,
    vocabulary.map_fits,
    weights.dtypes_agree,
    # The settings
    settings.steps_are_complete,
    settings.steps_make_sense,
    settings.acceptance_is_real,
    settings.draft_reaches_the_context,
    settings.quantization_is_not_inherited,
)


def findings(case: Case) -> list[Finding]:
    """Everything that the checks have to say, in the order of the table."""
    return [finding for check in CHECKS for finding in check(case)]
