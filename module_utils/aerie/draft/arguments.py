"""What the draft check wants to know of a server's further arguments, as they stand in an inventory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..instance.arguments import normalise

# Server argument -> option of the check, with its type.
_TAKEN: dict[str, tuple[str, type]] = {
    "context_length": ("context_length", int),
    "quantization": ("quantization", str),
    "speculative_draft_model_quantization": ("draft_quantization", str),
    "speculative_accept_threshold_single": ("speculative_accept_threshold_single", float),
    "speculative_accept_threshold_acc": ("speculative_accept_threshold_acc", float),
}


def with_arguments(params: Mapping[str, Any]) -> dict[str, Any]:
    """The module's parameters, completed from its option ``arguments``. An option that is given itself wins."""
    arguments = {normalise(str(name)): value for name, value in (params.get("arguments") or {}).items()}
    result = dict(params)
    for name, (option, kind) in _TAKEN.items():
        value = arguments.get(name)
        if value is None or isinstance(value, bool) or params.get(option) is not None:
            continue
        try:
            result[option] = kind(value)
        except (TypeError, ValueError):
            continue  # SGLang's own parser refuses it at start, in its own words
    if graphs_switched_off(arguments):
        result["cuda_graphs"] = False
    return result


def graphs_switched_off(arguments: Mapping[str, Any]) -> bool:
    """Whether normalised server arguments switch CUDA graphs for decoding off.

    ``--disable-cuda-graph`` is in all releases; the other forms came with 0.5.14.
    """
    if _on(arguments.get("disable_cuda_graph")) or _on(arguments.get("disable_decode_cuda_graph")):
        return True
    config = arguments.get("cuda_graph_config")
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except ValueError:
            config = None
    decode = config.get("decode") if isinstance(config, Mapping) else None
    backends = [arguments.get("cuda_graph_backend_decode")]
    if isinstance(decode, Mapping):
        backends.append(decode.get("backend"))
    return "disabled" in backends


def _on(value: Any) -> bool:
    """Whether a bare flag reaches the command line: anything but false and null, as ``arguments.command_line`` does."""
    return value is not None and value is not False
