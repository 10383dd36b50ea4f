"""What EAGLE-3 sees inside a running SGLang: one JSON line per event.

Comes with Aerie's patch set `debug`, goes with it. On with EAGLE3_DEBUG=1 and EAGLE3_DEBUG_DIR;
tensor-parallel rank 0 only. The first EAGLE3_DEBUG_FORWARDS (8) forwards of the target are recorded into
`events.jsonl` there. A file `arm.json` in the same directory, written after the server's start, records
again:

    {"id": text, "forwards": number, "tensors": bool, "layers": bool}

With tensors every state is also written as `NAME.safetensors`, key "x". With layers, hooks add the embedding,
the residual sum after every layer and the final norm.

A failure in here never reaches the server: it becomes an event `probe_error`, once for each kind. While a
CUDA graph is captured nothing is read from the GPU, so such events have shapes only; a graph that is replayed
runs no Python at all.
"""

from __future__ import annotations

import functools

from sglang.srt import aerie_probe_layers
from sglang.srt.aerie_probe_state import STATE, capture_mode, capturing, compiling


def quiet(function):
    """Off costs one comparison; an error is noted and swallowed."""

    @functools.wraps(function)
    def called(*arguments):
        if not STATE.on:
            return
        try:
            if not compiling() and STATE.first_rank():
                function(*arguments)
        except Exception as error:
            STATE.failed(function.__name__, error)

    return called


@quiet
def layers_set(model):
    """`set_eagle3_layers_to_capture` was called: by the server's start, or by a graph runner."""
    model = getattr(model, "model", model)
    STATE.write("layers_to_capture", _where(model, "set_eagle3_layers_to_capture"), values=layers_of(model))


@quiet
def forward_begins(model, batch):
    """A forward of the target begins."""
    aerie_probe_layers.remove()
    graph = capturing()
    STATE.begin("target", _mode(batch), graph)
    values = layers_of(model)
    known = (tuple(values), graph or capture_mode(), STATE.arm)
    # An arm of no forwards asks for silence.
    if values and STATE.limit > 0 and known not in STATE.known_layers:
        STATE.known_layers.add(known)
        STATE.write("layers_to_capture", _where(model), values=values)
    if STATE.layers and not graph and STATE.recording():
        aerie_probe_layers.watch(model, batch)


@quiet
def aux_captured(model, aux):
    """The target's layers are through; aux holds what was captured."""
    aerie_probe_layers.remove()
    if not STATE.recording() or len(aux) == 0:
        return
    states = states_of(aux)
    layers = _indices(model, len(states))
    for index, x in enumerate(states):
        STATE.write("aux_capture", _where(model), x, index=index, layer=layers[index])


@quiet
def draft_input(model, hidden_states, embeds, batch):
    """What the draft is given: the target's states (to go through fc), or between its own steps its own state."""
    STATE.begin("draft", _mode(batch), capturing())
    if STATE.recording():
        own = STATE.mode == "decode" and hidden_states.shape[-1] == embeds.shape[-1]
        STATE.write("draft_hidden" if own else "draft_input", _where(model), hidden_states)


@quiet
def draft_fc(model, hidden_states):
    """The same after fc."""
    if STATE.recording() and STATE.mode != "decode":
        STATE.write("draft_fc", _where(model), hidden_states)


@quiet
def logits_concat(processor, stored, metadata):
    """What the logits processor hands on, the captured states side by side: of all tokens (full) or the last (last)."""
    if stored is not None and STATE.recording():
        capture = "full" if metadata.capture_hidden_mode.is_full() else "last"
        STATE.write("logits_concat", _where(processor), stored, capture=capture)


def layers_of(model):
    """Loop indices that this model captures, ascending, as the loop meets them. Index i: before layer i runs.

    Qwen's MoE models mark the layers themselves from 0.5.4.post2 on, and what was marked once stays marked.
    """
    layers = enumerate(getattr(model, "layers", ()))
    marked = {i for i, layer in layers if getattr(layer, "_is_layer_to_capture", False)}
    return sorted({int(value) for value in getattr(model, "layers_to_capture", None) or []} | marked)


def states_of(aux):
    """The captured states, one tensor a layer. From 0.5.17 on some models write them side by side into one buffer."""
    buffer, width = getattr(aux, "_buffer", None), getattr(aux, "_feature_size", None)
    if buffer is None:
        return list(aux)
    return [buffer[..., k * width : (k + 1) * width] for k in range(len(aux))]


def _indices(model, count):
    """The loop indices of ``count`` captured states. One that no layer has is met only where a model says so."""
    wanted = layers_of(model)
    for known in (wanted, [i for i in wanted if i < len(model.layers)]):
        if len(known) == count:
            return known
    return [None] * count


def _where(model, function="forward"):
    return f"{type(model).__name__}.{function}"


def _mode(batch):
    name = getattr(getattr(batch, "forward_mode", None), "name", None)
    return name.lower() if name else None
