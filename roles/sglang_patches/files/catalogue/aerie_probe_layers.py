"""Every layer of one forward of the target, by forward hooks. Part of aerie_probe.py; on request only.

Up to 0.5.20 a layer returns (hidden, residual). Later the batch holds the residual stream, and a layer's
attention is the first to run after the stream was brought up to date, whatever was fused for that; the last
layer's sum goes into the final norm. Nothing is computed for the other ranks and no collective is called, so
hooks on rank 0 alone change nothing.
"""

from __future__ import annotations

from sglang.srt.aerie_probe_state import STATE


def watch(model, batch):
    """Set hooks for this forward."""
    name, layers = f"{type(model).__name__}.forward", list(model.layers)
    start, end = getattr(model, "start_layer", 0), getattr(model, "end_layer", len(layers))
    streams = hasattr(batch, "residual_stream")
    _hook(layers[start].register_forward_pre_hook, _embedding, name)
    for i in range(start, end):
        if not streams:
            _hook(layers[i].register_forward_hook, _after_layer, name, i)
        elif i > start:
            attention = getattr(layers[i], "self_attn", layers[i])
            _hook(attention.register_forward_pre_hook, _from_stream, name, i - 1, batch)
    norm = getattr(model, "norm", None)
    if hasattr(norm, "register_forward_hook"):
        if streams:
            _hook(norm.register_forward_pre_hook, _into_norm, name, end - 1)
        _hook(norm.register_forward_hook, _after_norm, name)


def remove():
    """Take the hooks of the last forward away."""
    while STATE.hooks:
        STATE.hooks.pop().remove()


def _hook(register, function, *arguments):
    def called(module, *given):
        try:
            function(*arguments, *given)
        except Exception as error:
            STATE.failed(function.__name__, error)

    STATE.hooks.append(register(called, with_kwargs=True))


def _embedding(name, given, named):
    STATE.write("embedding", name, named["hidden_states"] if "hidden_states" in named else given[1])


def _after_layer(name, layer, given, named, output):
    hidden, residual = (output[0], output[1]) if isinstance(output, (tuple, list)) else (output, None)
    partial = getattr(hidden, "_sglang_needs_allreduce_fusion", False)
    _write(name, layer, hidden, residual, **({"partial": True} if partial else {}))


def _from_stream(name, layer, batch, given, named):
    _write(name, layer, batch.residual_stream.residual, None)


def _into_norm(name, layer, given, named):
    values = [*given, *named.values(), None]
    _write(name, layer, values[0], values[1])


def _write(name, layer, hidden, residual, **more):
    """partial: the sum over the ranks is still to come, so the state is not the model's."""
    STATE.write("layer_output", name, hidden if residual is None else hidden + residual, layer=layer, **more)


def _after_norm(name, given, named, output):
    STATE.write("final_norm", name, output[0] if isinstance(output, (tuple, list)) else output)
