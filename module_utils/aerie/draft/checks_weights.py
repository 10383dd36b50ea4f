"""Checks of the checkpoints: architecture, whole files, and the shapes of what joins the target's states."""

from __future__ import annotations

from collections.abc import Iterator

from .case import Case, Finding, problem, warning
from .families import ANY_FC_WIDTH, MULTI_LAYER_DRAFTS, at_least, draft_class

_LLAMA = "srt/models/llama_eagle3.py"


def algorithm_fits_draft(case: Case) -> Iterator[Finding]:
    """EAGLE with an EAGLE-3 draft starts, is healthy, and accepts nothing."""
    algorithm, name = case.settings.algorithm, case.draft.architecture or "no architecture"
    if case.eagle3 == case.draft_is_eagle3:
        return
    if case.draft_is_eagle3:
        yield problem(
            "algorithm-mismatch",
            f"the draft ({name}) is an EAGLE-3 draft and the algorithm is {algorithm}",
            why="the target then hands over one state instead of several; fc is skipped, the server is healthy, the "
            "text is right and the accept length is 1.00",
            fix="set the algorithm to EAGLE3",
            source="PR #21272; run on the CPU engine with 0.5.23",
        )
    else:
        yield problem(
            "algorithm-mismatch",
            f"the algorithm is EAGLE3 and the draft ({name}) is no EAGLE-3 draft",
            why="an EAGLE-3 draft has an architecture of its own, layer ids in eagle_config, and fc",
            fix="use the draft's own algorithm (EAGLE, NEXTN, STANDALONE) or an EAGLE-3 draft",
            source="PR #4247",
        )


def draft_class_is_known(case: Case) -> Iterator[Finding]:
    """The draft's architecture must exist in this release."""
    name = case.draft.architecture
    if not case.eagle3 or not case.draft_is_eagle3:
        return
    known = draft_class(name)
    if known is not None and at_least(case.release, known.since):
        return
    nested = "transformer_layer_config" in case.draft.config or "speculators_config" in case.draft.config
    why = (
        f"{name} is there from {known.since} on"
        if known
        else "no release up to 0.5.23 has a class of that name"
    )
    yield problem(
        "draft-architecture-unknown",
        f"{case.release} cannot load a draft of architecture {name or '(none)'}",
        why=why
        + (
            "; the config is nested as vLLM's speculators write it, which SGLang does not read"
            if nested
            else ""
        ),
        fix=f"use {known.since} or later"
        if known
        else "convert the config to LlamaForCausalLMEagle3 (flat keys)",
        source=known.source if known else _LLAMA,
    )


def weight_files_are_whole(case: Case) -> Iterator[Finding]:
    """Missing shards and files cut off by a broken download."""
    for name, checkpoint in (("target", case.target), ("draft", case.draft)):
        if checkpoint.faults:
            yield problem(
                "weights-incomplete",
                f"weight files of the {name} are missing or broken",
                why="; ".join(checkpoint.faults[:5]) + (" …" if len(checkpoint.faults) > 5 else ""),
                fix=f"download {checkpoint.path} again",
                source="safetensors format: 8 bytes length, JSON header, data",
            )


def draft_layers_load(case: Case) -> Iterator[Finding]:
    """Number of decoder layers, and names of their weights that this release would silently skip."""
    if not case.draft_readable:
        return
    known = draft_class(case.draft.architecture)
    count = case.draft.number("num_hidden_layers")
    single = (known is not None and known.mla) or not at_least(case.release, MULTI_LAYER_DRAFTS)
    if single and count != 1:
        yield problem(
            "draft-layer-count",
            f"the draft has {count} decoder layers; {case.release} can load one",
            why="it raises at start: EAGLE3 currently only supports 1 layer",
            fix=f"use {MULTI_LAYER_DRAFTS} or later (Llama drafts only) or a draft with one layer",
            source=f"{_LLAMA}, {MULTI_LAYER_DRAFTS}",
        )
    names = [name.removeprefix("model.") for name in case.draft.tensors]
    old, new = (any(name.startswith(prefix) for name in names) for prefix in ("midlayer.", "layers."))
    if not old and not new:
        yield problem(
            "draft-layer-missing",
            "the draft's weights hold no decoder layer (midlayer.* or layers.0.*)",
            why="weights that are not there stay at random values; nothing says so",
            fix="check that the checkpoint is complete",
            source=f"{_LLAMA}: load_weights skips names that it does not know",
        )
    elif new and not old and not at_least(case.release, MULTI_LAYER_DRAFTS):
        yield problem(
            "draft-layer-name",
            f"the draft's decoder layer is named layers.0.*; {case.release} looks for midlayer.*",
            why="names that the model does not have are skipped without a word: the layer stays random",
            fix=f"use {MULTI_LAYER_DRAFTS} or later, or rename the tensors",
            source=f"{_LLAMA}, legacy_name_map from {MULTI_LAYER_DRAFTS} on",
        )


def fc_fits_the_states(case: Case) -> Iterator[Finding]:
    """fc's inputs: as many states as ids, each as wide as the target's hidden states."""
    if not case.draft_readable:
        return
    fc = case.draft.tensor("fc.weight")
    hidden, target_hidden = case.draft.number("hidden_size"), case.target.number("hidden_size")
    if fc is None or len(fc.shape) != 2:
        yield problem(
            "fc-missing",
            "the draft has no fc.weight, which joins the target's states",
            why="weights that are not there stay at random values; nothing says so",
            fix="check that this is an EAGLE-3 draft and complete",
            source=f"{_LLAMA}: load_weights",
        )
        return
    rows, columns = fc.shape
    if target_hidden and columns != case.states * target_hidden:
        yield problem(
            "fc-width",
            f"fc.weight takes {columns} inputs, not {case.states} states of {target_hidden}",
            why=f"the ids are {'missing (3 states)' if case.ids is None else list(case.ids)} and the target's "
            f"hidden_size is {target_hidden}; {_as_states(columns, target_hidden)}",
            fix="name as many layers as the draft was trained on, or use the draft's own target",
            source=f"{_LLAMA}: fc",
        )
    elif case.states != 3 and not at_least(case.release, ANY_FC_WIDTH):
        yield problem(
            "fc-three-states",
            f"the draft joins {case.states} states; {case.release} builds fc for exactly three",
            why="the shapes differ when the weights are loaded",
            fix=f"use {ANY_FC_WIDTH} or later",
            source=f"{_LLAMA}: fc, num_aux_hidden_states from {ANY_FC_WIDTH} on",
        )
    if case.ids is not None and case.states != len(case.ids):
        yield problem(
            "states-count",
            f"num_aux_hidden_states is {case.states} and {len(case.ids)} layers are named",
            why="fc is built for the one and gets the other",
            fix="let num_aux_hidden_states be the number of ids, or leave it out",
            source=f"{_LLAMA}: num_aux_hidden_states",
        )
    if hidden and rows != hidden:
        yield problem(
            "fc-height",
            f"fc.weight gives {rows} values; the draft's hidden_size is {hidden}",
            why="the shapes differ when the weights are loaded",
            fix="check that config.json belongs to these weights",
            source=f"{_LLAMA}: fc",
        )


def _as_states(columns: int, hidden: int) -> str:
    if columns % hidden == 0:
        return f"{columns} inputs are {columns // hidden} states of this target"
    return f"{columns} inputs are no whole number of this target's states: a draft for another target"


def hidden_sizes_agree(case: Case) -> Iterator[Finding]:
    """target_hidden_size, where there is one, is the target's; without one, the draft is as wide as the target."""
    target, own = case.target.number("hidden_size"), case.draft.number("hidden_size")
    if not case.eagle3 or not target or not own:
        return
    if "target_hidden_size" in case.draft.config:
        stated = case.draft.config["target_hidden_size"]
        if stated != target:
            yield problem(
                "target-hidden-size",
                f"target_hidden_size of the draft is {stated}; the target's hidden_size is {target}",
                why="the draft was made for another target"
                if stated
                else "SGLang multiplies it by the number of states",
                fix="use the draft's own target, or correct the key",
                source=f"{_LLAMA}: hidden_size_in",
            )
    elif own != target:
        yield problem(
            "hidden-size",
            f"the draft's hidden_size is {own}, the target's is {target}, and there is no target_hidden_size",
            why="fc is built for states as wide as the draft, and the target's embedding does not fit",
            fix="use the draft's own target, or add target_hidden_size to the draft's config",
            source=f"{_LLAMA}: hidden_size_in, set_embed",
        )


def dtypes_agree(case: Case) -> Iterator[Finding]:
    """Target and draft in different floating types."""
    keys = ("torch_dtype", "dtype")
    target = next((case.target.text.get(key) for key in keys if case.target.text.get(key)), None)
    draft = next((case.draft.config.get(key) for key in keys if case.draft.config.get(key)), None)
    if not case.eagle3 or not target or not draft or target == draft:
        return
    yield warning(
        "dtype-differs",
        f"the target's dtype is {target}, the draft's is {draft}",
        why="a draft in another type has failed while graphs were captured (SGLang issue #3824)",
        fix=f"set the draft's torch_dtype to {target}, or give --dtype",
        source="SGLang issue #3824",
    )
