"""What the probes of debug mode wrote: one JSON object a line. Pure.

The lines come from a file that the service user owns, so nothing in them is trusted: what does not have the form is
left out, and a tensor's name must be a plain file name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

_TENSOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.safetensors")


@dataclass(frozen=True)
class Event:
    """One line. ``layer``: the loop index of an aux_capture, the layer of a layer_output. ``norm``: Frobenius."""

    kind: str
    forward: int = 0
    where: str = ""
    mode: str = ""
    graph: bool = False
    index: int | None = None
    layer: int | None = None
    shape: tuple[int, ...] = ()
    dtype: str = ""
    norm: float | None = None
    first: tuple[float, ...] = ()
    last: tuple[float, ...] = ()
    tensor: str = ""
    capture: str = ""
    partial: bool = False
    values: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 0

    @property
    def width(self) -> int:
        return self.shape[-1] if self.shape else 0


@dataclass(frozen=True)
class Served:
    """The lines of one prompt's forward. ``draft``: what reached the draft, before its fc; ``joined``: what the
    target handed over; ``aux``: what was captured, in order; ``layers``: all layers' outputs, by layer."""

    rows: int
    draft: Event | None = None
    joined: Event | None = None
    aux: tuple[Event, ...] = ()
    layers: tuple[Event, ...] = ()
    embedding: Event | None = None
    final_norm: Event | None = None
    draft_fc: Event | None = None
    asked: tuple[int, ...] = ()

    @property
    def states(self) -> Event | None:
        """The states that count: what the draft got, or else what was handed over."""
        return self.draft or self.joined

    @property
    def candidates(self) -> list[tuple[str, int | None, Event]]:
        """Name, layer and line of each state that a segment may turn out to carry. Layer -1 is the embedding."""
        found: list[tuple[str, int | None, Event]] = []
        if self.embedding is not None:
            found.append(("the embedding", -1, self.embedding))
        found += [(f"the output of layer {one.layer}", one.layer, one) for one in self.layers]
        if self.final_norm is not None:
            found.append(("the final norm", None, self.final_norm))
        return found


@dataclass
class Lines:
    """Events of one arm id, as the file grows. ``feed`` takes the bytes that are new."""

    arm: str
    events: list[Event] = field(default_factory=list)
    other: int = 0
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            found = parse(line)
            if found is None:
                continue
            if found[0] == self.arm:
                self.events.append(found[1])
            else:
                self.other += 1


def parse(line: bytes) -> tuple[str, Event] | None:
    """``(arm id, event)``, or None for a line that has not the form."""
    try:
        raw = json.loads(line)
    except ValueError:
        return None
    if not isinstance(raw, dict) or not isinstance(raw.get("event"), str):
        return None
    tensor = raw.get("tensor")
    return str(raw.get("arm") or ""), Event(
        kind=raw["event"],
        forward=_int(raw.get("forward")) or 0,
        where=str(raw.get("where") or ""),
        mode=str(raw.get("mode") or ""),
        graph=raw.get("graph_capture") is True,
        index=_int(raw.get("index")),
        layer=_int(raw.get("layer")),
        shape=tuple(one for one in _list(raw.get("shape")) if isinstance(one, int)),
        dtype=str(raw.get("dtype") or ""),
        norm=_number(raw.get("norm")),
        first=_numbers(raw.get("first")),
        last=_numbers(raw.get("last")),
        tensor=tensor if isinstance(tensor, str) and _TENSOR.fullmatch(tensor) else "",
        capture=str(raw.get("capture") or ""),
        partial=raw.get("partial") is True,
        values=tuple(one for one in _list(raw.get("values")) if isinstance(one, int)),
    )


def served(events: Iterable[Event], rows: int) -> Served:
    """The first forward of a prompt of ``rows`` tokens: other requests of that moment have other lengths."""
    seen = list(events)
    of_prompt = [one for one in seen if one.rows == rows and not one.graph]
    aux = _first_run([one for one in of_prompt if one.kind == "aux_capture"], lambda one: one.index)
    # A partial layer's sum over the ranks was still to come: it is nobody's state.
    whole = [one for one in of_prompt if one.kind == "layer_output" and not one.partial]
    layers = _first_run(whole, lambda one: one.layer)
    asked = [one for one in seen if one.kind == "layers_to_capture" and one.values]
    return Served(
        rows=rows,
        draft=_first(of_prompt, "draft_input"),
        joined=next(
            (one for one in of_prompt if one.kind == "logits_concat" and one.capture != "last"), None
        ),
        aux=tuple(sorted(aux, key=lambda one: one.index or 0)),
        layers=tuple(sorted(layers, key=lambda one: one.layer or 0)),
        embedding=_first(of_prompt, "embedding"),
        final_norm=_first(of_prompt, "final_norm"),
        draft_fc=_first(of_prompt, "draft_fc"),
        asked=asked[-1].values if asked else (),
    )


def _first(events: Sequence[Event], kind: str) -> Event | None:
    return next((one for one in events if one.kind == kind), None)


def _first_run(events: Sequence[Event], key: Any) -> list[Event]:
    """The first event for each key: a prompt that is sent twice has the same states again."""
    found: dict[Any, Event] = {}
    for one in events:
        if key(one) is not None:
            found.setdefault(key(one), one)
    return list(found.values())


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _numbers(value: Any) -> tuple[float, ...]:
    return tuple(float(one) for one in _list(value) if _number(one) is not None)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
