"""Checks of the layer ids: are they there, are they read, and do they name the layers that the draft was trained on?"""

from __future__ import annotations

from collections.abc import Iterator

from .case import NOTHING_TO_DO, Case, Finding, problem, warning
from .families import GRAPH_BUG_FIRST, GRAPH_BUG_FIXED, GRAPH_FIX, USE_AUX_READ, at_least
from .layer_ids import PLUS_ONE, PLUS_ONE_IF_FIRST_IS_ONE, outputs

_READ_BY = "srt/model_executor/model_runner.py: the ids are read from eagle_config inside try/except"
_GRAPHS = "PR #22836, first in 0.5.11"
_TRAINING = (
    "set training_layers (in an inventory: sglang_server_training_layers) to the layer outputs that the draft was "
    "trained on, in concatenation order"
)


def target_captures(case: Case) -> Iterator[Finding]:
    """The target's class must have set_eagle3_layers_to_capture in this release."""
    if not case.eagle3 or case.rule() is not None:
        return
    delegation = case.rules.delegation
    fix = (
        f"add {delegation.fix} to the fixes, or use {delegation.upstream} or later"
        if delegation
        else ("use a release and a target that support EAGLE-3 together (docs/draft-rules.md)")
    )
    yield problem(
        "target-cannot-capture",
        f"the target cannot hand hidden states to an EAGLE-3 draft in {case.release}",
        why=case.rules.reason,
        fix=fix,
        source=case.rules.source,
    )


def ids_are_found(case: Case) -> Iterator[Finding]:
    """Ids that SGLang does not find mean its default layers, and nothing says so."""
    found = case.draft_ids
    if case.rewritten or not case.eagle3 or found.where == "nested":
        return
    default = f"the default is captured: outputs of layers {outputs(case.rules.default)}"
    if found.where == "top-level":
        yield problem(
            "ids-misplaced",
            f"the layer ids {found.raw} stand at the top level of the draft's config, where SGLang does not look",
            why=f"only eagle_config.eagle_aux_hidden_state_layer_ids is read; {default}",
            fix="move them into eagle_config, or let the deployment write them (serve_ids: recommended)",
            source=_READ_BY,
        )
        return
    what = "are null" if found.where == "null" else "are missing"
    yield warning(
        "ids-null" if found.where == "null" else "ids-missing",
        f"the layer ids {what} in the draft's eagle_config",
        why=f"{default}. A Llama-3.3-70B draft without ids had accept length 1.036 instead of 2.77 "
        "(vLLM PR #50170), and nothing in the server showed it",
        fix=_TRAINING,
        source=_READ_BY,
    )


def ids_are_numbers(case: Case) -> Iterator[Finding]:
    """Anything but a list of whole numbers fails at start, or captures nothing."""
    if case.rewritten or case.draft_ids.where != "nested" or case.draft_ids.ids is not None:
        return
    yield problem(
        "ids-invalid",
        f"the layer ids are {case.draft_ids.raw!r}, not a list of whole numbers",
        why="an empty list captures nothing and any other value fails when it is counted up",
        fix="write a list of layer numbers, for example [2, 30, 58]",
        source=_READ_BY,
    )


def ids_are_read(case: Case) -> Iterator[Finding]:
    """Releases up to 0.4.8.post1 take no ids at all."""
    rule = case.rule()
    if case.ids is None or rule is None or rule.takes_ids:
        return
    if sorted(PLUS_ONE.indices(case.ids, case.layers)) == list(case.rules.default):
        return
    yield problem(
        "ids-ignored",
        f"{case.release} does not read layer ids; {list(case.ids)} have no effect",
        why=f"up to 0.4.8.post1 every target captures the outputs of {outputs(case.rules.default)}",
        fix=f"use {GRAPH_BUG_FIRST} or later, better {GRAPH_BUG_FIXED} or later",
        source=case.rules.source,
    )


def ids_in_range(case: Case) -> Iterator[Finding]:
    """Each id must name a state that the target's loop captures."""
    rule = case.rule()
    if case.ids is None or rule is None or not rule.takes_ids:
        return
    ids = list(case.ids)
    if min(ids) < 0:
        yield problem(
            "ids-negative",
            f"the layer ids {ids} hold a negative number",
            why="no release has a meaning for it: read as the embedding there is no residual to add yet "
            "(TypeError up to 0.5.13), read as it is no layer matches and one state is missing",
            fix="name layers from 0 on; the embedding cannot be served",
            source="srt/models/deepseek_v2.py and llama.py, read in 0.5.9 to 0.5.23",
        )
        return
    indices = rule.indices(ids, case.layers)
    for item, index in zip(ids, indices, strict=True):
        if index < 1:
            yield problem(
                "ids-embedding",
                f"layer id {item} names the embedding in {case.release} (loop index {index})",
                why=f"{rule.meaning}; what enters layer 0 is the embedding, and no draft is trained on it",
                fix=_TRAINING,
                source=case.rules.source,
            )
        elif index > case.rules.last_index:
            yield problem(
                "ids-out-of-range",
                f"layer id {item} is beyond what a target of {case.layers} layers can capture (loop index {index})",
                why=f"the loop captures indices 1 to {case.rules.last_index}; a state that is never captured makes "
                "the joined width wrong: HTTP comes up, then the warm-up dies with mat1 and mat2 shapes",
                fix=f"the largest layer output that can be served is {case.rules.last_index - 1}",
                source="forward of the target's class; run on the CPU engine with 0.5.23",
            )


def ids_are_unique(case: Case) -> Iterator[Finding]:
    """A layer is captured once, however often it is named."""
    if case.ids is None or len(set(case.ids)) == len(case.ids):
        return
    yield problem(
        "ids-duplicated",
        f"the layer ids {list(case.ids)} name a layer twice",
        why=f"each layer is captured once, so {len(set(case.ids))} states arrive where the draft expects {case.states}",
        fix="name each layer once",
        source="i in layers_to_capture, all releases",
    )


def ids_are_ordered(case: Case) -> Iterator[Finding]:
    """Out of order is harmless by itself: states arrive by layer."""
    if case.ids is None or list(case.ids) == sorted(case.ids):
        return
    yield warning(
        "ids-unordered",
        f"the layer ids {list(case.ids)} are not ascending",
        why="states are captured as the layers run, so the order of the ids has no effect"
        + (
            ", except that the first id decides how all are read"
            if case.rule() is PLUS_ONE_IF_FIRST_IS_ONE
            else ""
        ),
        fix="write them in ascending order, so that nobody reads an order into them",
        source="i in layers_to_capture, all releases",
    )


def training_can_be_served(case: Case) -> Iterator[Finding]:
    """training_layers must be ascending layer outputs of this target, and the release must have words for them."""
    training = case.settings.training_layers
    if training is None or not case.eagle3:
        return
    if (
        not training
        or min(training) < 0
        or max(training) >= case.layers
        or len(set(training)) != len(training)
    ):
        yield problem(
            "training-invalid",
            f"training_layers {list(training)} are not different layer outputs of a target with {case.layers} layers",
            why=f"outputs are numbered 0 to {case.layers - 1}; the embedding (-1) cannot be captured",
            fix="look the layers up in the training configuration",
            source="srt/models: the loop captures what enters layer i",
        )
    elif list(training) != sorted(training):
        yield problem(
            "training-not-ascending",
            f"the draft was trained on the states {list(training)} joined in this order; SGLang joins them ascending",
            why="capture goes by layer order in every release and no list of ids changes it: each part of fc "
            "would get another layer's state",
            fix="permute the columns of fc.weight to ascending layer order, or train with ascending layers",
            source="i in layers_to_capture, all releases",
        )
    elif case.recommended is None and case.rule() is not None:
        yield problem(
            "training-unspeakable",
            f"{case.release} has no list of ids for the layer outputs {list(training)}",
            why=case.recommended_reason,
            fix=_other_release(case),
            source=case.rules.source,
        )


def _other_release(case: Case) -> str:
    if case.rule() is PLUS_ONE_IF_FIRST_IS_ONE:
        return (
            "serve with 0.5.12, the last release in which every id named an output, or train on other layers"
        )
    return "serve with another release, or train on other layers"


def layers_are_the_trained_ones(case: Case) -> Iterator[Finding]:
    """The heart of it: what is captured against what the draft was trained on."""
    training = case.settings.training_layers
    if not case.eagle3 or case.wiring is None or case.wiring.piled_up or not training:
        return
    served = outputs(case.wiring.eager)
    if served == sorted(training) or min(training) < 0:
        return
    right = f"ids {case.recommended}" if case.recommended else "other ids or another release"
    rule = case.rule()
    yield problem(
        "wrong-layers",
        f"{case.release} captures the outputs of layers {served}; the draft was trained on {list(training)}",
        why=f"{_shift(served, sorted(training))}ids {'(none)' if case.ids is None else list(case.ids)} are read so: "
        f"{rule.meaning if rule else ''}. The server stays healthy and slower than without a draft",
        fix=f"write {right} into the draft's eagle_config, or serve_ids: recommended",
        source=case.rules.source,
    )


def _shift(served: list[int], training: list[int]) -> str:
    shifts = {a - b for a, b in zip(served, training, strict=False)}
    if len(served) != len(training) or len(shifts) != 1:
        return ""
    by = shifts.pop()
    return f"every layer is off by {by:+d}: "


def graphs_capture_the_same(case: Case) -> Iterator[Finding]:
    """From 0.4.9 to 0.5.10.post1, CUDA graphs capture the default layers whatever the ids."""
    if not case.eagle3 or case.wiring is None or case.rules.graph_keeps_ids:
        return
    graph, eager = outputs(case.wiring.cuda_graph), outputs(case.wiring.eager)
    if case.wiring.piled_up:
        yield problem(
            "layers-pile-up",
            f"with CUDA graphs {case.release} captures the outputs of layers {eager} outside of the graphs",
            why="this target marks layers one by one and never unmarks them: the default layers, marked while graphs "
            "were captured, stay marked beside the draft's. The joined width no longer fits fc",
            fix=f"add {GRAPH_FIX} to the fixes, or use {GRAPH_BUG_FIXED} or later",
            source=f"_is_layer_to_capture in srt/models of the release; {_GRAPHS}",
        )
    if graph == eager:
        return
    text = f"{case.release} captures the outputs of layers {graph} inside CUDA graphs and {eager} outside of them"
    why = (
        "CudaGraphRunner sets the default layers again before it captures, and the draft's ids are applied "
        f"after that ({GRAPH_BUG_FIRST} to 0.5.10.post1)"
    )
    fix = f"add {GRAPH_FIX} to the fixes, use {GRAPH_BUG_FIXED} or later, or switch CUDA graphs off"
    if case.settings.cuda_graphs:
        yield problem("graph-captures-other-layers", text, why=why, fix=fix, source=_GRAPHS)
    else:
        yield warning(
            "graph-would-capture-other-layers",
            f"{text}; this server runs without graphs, so it proves nothing about one with them",
            why=why,
            fix=fix,
            source=_GRAPHS,
        )


def meaning_is_known(case: Case) -> Iterator[Finding]:
    """Without training_layers nobody can say whether ids are right: two conventions are in use."""
    if not case.eagle3 or case.settings.training_layers is not None or case.wiring is None:
        return
    written = (
        "no ids are written"
        if case.ids is None
        else f"ids {list(case.ids)} do not say which convention they use"
    )
    other = ""
    if case.ids is not None and min(case.ids) > 0:
        other = (
            f" They may mean the outputs {list(case.ids)} (training code, SGLang's first rule) or what enters those "
            f"layers, the outputs {outputs(case.ids)} (EAGLE reference, vLLM)."
        )
    yield warning(
        "layers-unproven",
        f"{case.release} captures the {case.captured_text()}; whether the draft was trained on them cannot be known",
        why=f"{written}.{other}",
        fix=_TRAINING,
        source="PR #25454 found published drafts off by one (about 0.10 accept length on Kimi-K2.5-NVFP4)",
    )


def aux_states_are_used(case: Case) -> Iterator[Finding]:
    """use_aux_hidden_state: false gives the draft one state where fc expects several, silently."""
    if not case.eagle3 or case.draft_ids.use_aux:
        return
    if not at_least(case.release, USE_AUX_READ):
        yield warning(
            "use-aux-ignored",
            f"use_aux_hidden_state is false in the draft's config; {case.release} does not read it",
            why=f"it is read from {USE_AUX_READ} on and would then break this draft",
            fix="set it to true",
            source="srt/model_executor/model_runner.py",
        )
        return
    yield problem(
        "use-aux-off",
        "use_aux_hidden_state is false in the draft's eagle_config",
        why="the target hands over its last state alone; its width equals the draft's, so fc is skipped without a "
        "word and the draft works on a state that it never saw",
        fix="set it to true, or leave it out",
        source="srt/models/llama_eagle3.py: if hidden_states.shape[-1] != embeds.shape[-1]",
    )


def rewriting_is_said(case: Case) -> Iterator[Finding]:
    """Say which ids the deployment writes into its own copy of the draft's config."""
    before = case.draft_ids.raw
    if not case.rewritten or before == case.recommended:
        return
    yield warning(
        "ids-rewritten",
        f"the deployment serves ids {case.recommended}; the checkpoint says {before}",
        why=f"in {case.release} they name the layers that the draft was trained on; the checkpoint is not touched",
        fix=NOTHING_TO_DO,
        source=case.rules.source,
    )
