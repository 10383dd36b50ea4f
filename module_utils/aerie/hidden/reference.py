"""What the training pipeline dumped, in its small form: token ids, norms and first values as JSON. Pure.

People often have no more than a line of a log for each layer::

    {"input_ids": [1, 2, …],
     "layers": [{"layer": 2, "norm": 713.2, "first": [0.0295, -0.0114, -0.0170, 0.0061, 0.0102]}, …]}

``layers`` are layer outputs in the order in which training joined them. ``norm`` is the Frobenius norm over all
tokens of the prompt, ``first`` the first values of the first token, ``last`` those of the last token; each may be
left out, though not all. ``states`` (a list of rows, one a token) instead gives everything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import AerieError, ErrorKind
from .events import Event, Served

REFERENCE_UNUSABLE = ErrorKind(
    "hidden-reference-unusable",
    "The reference for hidden states cannot be read, or does not hold a prompt's token ids and hidden states.",
)
_SHOWN = 5


@dataclass(frozen=True)
class Known:
    """What is known of one state: any of norm, first and last values."""

    norm: float | None = None
    first: tuple[float, ...] = ()
    last: tuple[float, ...] = ()


@dataclass(frozen=True)
class Reference:
    """``layers``: layer outputs in training's order, empty when unknown. ``known`` only in the small form; ``width``
    of the joined states only in the full form."""

    ids: tuple[int, ...]
    layers: tuple[int, ...] = ()
    known: tuple[Known, ...] = ()
    width: int | None = None

    @property
    def small(self) -> bool:
        return bool(self.known)


def read_json_reference(text: str, path: str) -> Reference:
    """Read the JSON form. Raises hidden-reference-unusable."""
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise unusable(path, f"not JSON: {error}") from error
    if not isinstance(raw, Mapping):
        raise unusable(path, "it holds no object with input_ids and layers")
    ids = raw.get("input_ids") or raw.get("prompt_token_ids") or raw.get("prompt_ids")
    if not isinstance(ids, list) or not ids or not all(isinstance(one, int) for one in ids):
        raise unusable(path, "input_ids is no list of token ids")
    entries = raw.get("layers")
    if isinstance(entries, Mapping):
        entries = [{"layer": int(name), **value} for name, value in entries.items() if str(name).isdigit()]
    if not isinstance(entries, list) or not entries or not all(isinstance(one, Mapping) for one in entries):
        raise unusable(path, "layers is no list of objects")
    layers = tuple(one["layer"] for one in entries if isinstance(one.get("layer"), int))
    if layers and len(layers) != len(entries):
        raise unusable(path, "some layers have a number and some have none")
    known = tuple(_known(one, len(ids), path) for one in entries)
    return Reference(tuple(ids), layers, known)


def _known(entry: Mapping[str, Any], rows: int, path: str) -> Known:
    states = entry.get("states")
    if isinstance(states, list) and states:
        if len(states) != rows or not all(isinstance(row, list) for row in states):
            raise unusable(path, f"states of a layer must have {rows} rows, one a prompt token")
        total = sum(float(value) ** 2 for row in states for value in row)
        return Known(math.sqrt(total), _values(states[0]), _values(states[-1]))
    norm = entry.get("norm")
    known = Known(
        float(norm) if isinstance(norm, (int, float)) and norm > 0 else None,
        _values(entry.get("first")),
        _values(entry.get("last")),
    )
    if known == Known():
        raise unusable(path, "a layer has neither norm, first, last nor states")
    return known


def _values(given: Any) -> tuple[float, ...]:
    return tuple(float(one) for one in given[:_SHOWN]) if isinstance(given, list) else ()


def small_figures(reference: Reference, served: Served) -> dict[str, Any]:
    """The figures of ``hidden_child.compare`` as far as norms and first values give them."""
    segments = list(served.aux)
    candidates = [event for _, _, event in served.candidates]
    return {
        "cross": [[compared(_seen(a), b, a) for b in reference.known] for a in segments],
        "shard": [None for _ in segments],
        "row_shift": [0 for _ in segments],
        "served_to": [[compared(_seen(a), _seen(b), b) for b in candidates] for a in segments],
        "reference_to": [[_reverse(compared(_seen(b), a, b)) for b in candidates] for a in reference.known],
        "extra": {},
    }


def compared(a: Known, b: Known, event: Event) -> dict[str, float | None] | None:
    """How far ``a`` is from ``b``; ``error`` is the worst of what both have.

    Single values carry rounding noise in proportion to the whole row, not to themselves, so a tenth of the row's
    root mean square is the least that they are measured against.
    """
    errors, cosines, largest = [], [], []
    rms = (
        event.norm / math.sqrt(event.rows * event.width) if event.norm and event.rows and event.width else 0.0
    )
    for mine, other in ((a.first, b.first), (a.last, b.last)):
        count = min(len(mine), len(other))
        if not count:
            continue
        x, y = mine[:count], other[:count]
        distance = math.dist(x, y)
        scale = max(_length(y), 0.1 * rms * math.sqrt(count))
        errors.append(distance / scale if scale else math.inf if distance else 0.0)
        largest.append(max(abs(p - q) for p, q in zip(x, y, strict=True)))
        lengths = _length(x) * _length(y)
        if lengths:
            cosines.append(sum(p * q for p, q in zip(x, y, strict=True)) / lengths)
    ratio = a.norm / b.norm if a.norm and b.norm else None
    if ratio is not None:
        errors.append(abs(ratio - 1.0))
    if not errors:
        return None
    return {
        "error": max(errors),
        "error_90": max(errors),
        "cosine": min(cosines) if cosines else None,
        "norm_ratio": ratio,
        "max_difference": max(largest) if largest else None,
    }


def _reverse(figures: dict[str, float | None] | None) -> dict[str, float | None] | None:
    ratio = figures["norm_ratio"] if figures else None
    return {**figures, "norm_ratio": 1.0 / ratio} if figures and ratio else figures


def _seen(event: Event) -> Known:
    return Known(event.norm, event.first, event.last)


def _length(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values))


def unusable(path: str, why: str) -> AerieError:
    return REFERENCE_UNUSABLE.error(
        f"the reference {path} cannot be used",
        evidence=[why],
        next="docs/hidden-states.md shows the forms that a reference can have",
    )
