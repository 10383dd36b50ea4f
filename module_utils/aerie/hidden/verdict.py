"""Which states the draft gets, and whether they are those that it was trained on: from figures to a verdict. Pure.

What decides is the relative error of a token's state, |served - reference| / |reference|, median over the prompt.
bfloat16 keeps eight bits, so one rounding moves a value by up to 0.4 %, and other kernels or another sharding round
elsewhere: a known good case read 0.0295 -0.0113 -0.0168 against 0.0295 -0.0114 -0.0170, which is 0.6 %. Neighbouring
layers may be as close as a few per cent in the middle of a deep model. So with all-layer lines a segment is also
*named*, by the layer of the same forward that it equals, and the names decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TOLERANCE = {"bfloat16": 0.05, "float16": 0.02, "float32": 0.01}
"""Largest relative error of a match, by the dtype that the server computes in; other dtypes take the first."""
SAME_FORWARD = 0.01
"""A state that was captured, against the same forward's own layer: only a rounding of the store may lie between."""
CLEARLY = 2.0
"""Another layer must fit the reference this many times better before it overrules a match."""

Pair = Mapping[str, Any]


@dataclass(frozen=True)
class Candidate:
    """A state of the server's own forward. ``layer``: -1 the embedding, None the final norm."""

    name: str
    layer: int | None


@dataclass(frozen=True)
class Segment:
    """One segment. ``state``: match, layer, permuted, embedding, final-norm, shard, token-shift, differs."""

    number: int
    state: str
    sentence: str
    served: Candidate | None = None
    trained: Candidate | None = None
    pair: Pair | None = None


@dataclass(frozen=True)
class Verdict:
    """``state``: match, shifted, permuted, embedding, final-norm, shard, token-shift, width, other-layers, differs."""

    state: str
    sentence: str
    next: str
    segments: list[Segment] = field(default_factory=list)
    training_layers: list[int] = field(default_factory=list)

    @property
    def matched(self) -> bool:
        return self.state == "match"


def tolerance_for(dtype: str, given: float | None) -> float:
    """The tolerance that was asked for, or the dtype's."""
    return given if given is not None else TOLERANCE.get(dtype, TOLERANCE["bfloat16"])


def decide(
    figures: Mapping[str, Any],
    candidates: Sequence[Candidate],
    tolerance: float,
    training_layers: Sequence[int] = (),
    captured_layers: Sequence[int] = (),
) -> Verdict:
    """The verdict from ``figures`` (``hidden_child.compare``).

    candidates: the columns of ``served_to`` and ``reference_to``, empty without all-layer lines. training_layers:
    what was stated; captured_layers: the layer outputs that the probes say were captured. Both may be empty.
    """
    stated = list(training_layers)
    claimed = list(captured_layers)
    segments = [
        _segment(place, figures, candidates, tolerance, stated, claimed)
        for place in range(len(figures["cross"]))
    ]
    extra = figures.get("extra") or {}
    if all(one.state == "match" for one in segments):
        return _matched(segments, extra, tolerance)
    return _mismatch(segments, stated, bool(candidates))


def width_verdict(got: int, wanted: int, states: int) -> Verdict:
    """The draft got states of another width: one state instead of several, most often."""
    one = got * states == wanted
    what = (
        f"the draft gets one state of width {got}"
        if one
        else f"the draft gets states of width {got} together"
    )
    return Verdict(
        "width",
        f"{what}; it was trained on {states} states of width {wanted // states if states else wanted} each. "
        + (
            "It gets the target's last hidden state alone and skips its fc without a word (PR #21272)."
            if one
            else ""
        ),
        "set algorithm EAGLE3 in sglang_server_speculative and use_aux_hidden_state true in the draft's eagle_config"
        if one
        else "compare the number of training_layers with the draft's fc.weight: sglang_draft_check reads both",
    )


def _segment(
    place: int,
    figures: Mapping[str, Any],
    candidates: Sequence[Candidate],
    tolerance: float,
    stated: list[int],
    claimed: list[int],
) -> Segment:
    row = figures["cross"][place]
    own = row[place] if place < len(row) else None
    served = _named(figures["served_to"], place, candidates, SAME_FORWARD)
    trained = _named(figures["reference_to"], place, candidates, tolerance)
    number = place + 1
    if _close(own, tolerance) and not _overruled(place, figures, candidates, own, served, trained):
        name = served.name if served else _claimed(place, claimed)
        return Segment(
            number, "match", f"segment {number} matches{f': {name}' if name else ''}", served, trained, own
        )
    was = trained.name if trained else f"layer {stated[place]}" if place < len(stated) else ""
    others = _elsewhere(place, figures, candidates, tolerance, served)
    shard, turn = figures["shard"][place], figures["row_shift"][place]
    if others:
        state, what = "permuted", f"carries the states of segment {others[0] + 1} of the training data"
    elif served is not None and served.layer is None:
        state, what = "final-norm", "carries the final norm"
    elif served is not None and served.layer == -1:
        state, what = "embedding", "carries the embedding"
    elif shard is not None:
        state, what = "shard", _shard_words(shard)
    elif turn:
        state, what = "token-shift", f"is one token {'ahead' if turn > 0 else 'behind'}: rows are not aligned"
    elif served is not None and served != trained:
        state, what = "layer", f"carries {served.name}"
    else:
        state, what = "differs", "differs" + (f" by {own['error']:.0%}" if own and own["error"] < 10 else "")
    sentence = f"segment {number} {what}" + (f"; the draft was trained on {was}" if was else "")
    return Segment(number, state, sentence, served, trained, own)


def _named(
    rows: Sequence[Sequence[Pair | None]], place: int, candidates: Sequence[Candidate], limit: float
) -> Candidate | None:
    """The candidate that fits best, if it fits."""
    best = _best(rows[place] if place < len(rows) else [])
    return candidates[best[0]] if best is not None and best[1] <= limit else None


def _best(row: Sequence[Pair | None]) -> tuple[int, float] | None:
    errors = [(float(found["error"]), column) for column, found in enumerate(row) if found is not None]
    return (min(errors)[1], min(errors)[0]) if errors else None


def _close(found: Pair | None, tolerance: float) -> bool:
    return found is not None and found["error"] <= tolerance and found["error_90"] <= 3 * tolerance


def _elsewhere(
    place: int,
    figures: Mapping[str, Any],
    candidates: Sequence[Candidate],
    tolerance: float,
    served: Candidate | None,
) -> list[int]:
    """Other segments of the reference that hold this state: by name where there are names, else by closeness."""
    row = figures["cross"][place]
    others = [other for other in range(len(row)) if other != place]
    if served is not None:
        names = {other: _named(figures["reference_to"], other, candidates, tolerance) for other in others}
        return [other for other in others if names[other] == served]
    return [other for other in others if _close(row[other], tolerance)]


def _overruled(
    place: int,
    figures: Mapping[str, Any],
    candidates: Sequence[Candidate],
    own: Pair | None,
    served: Candidate | None,
    trained: Candidate | None,
) -> bool:
    """Whether another layer than the served one fits the reference so much better that the match is a neighbour's."""
    if served is None or trained is None or served == trained or own is None:
        return False
    best = _best(figures["reference_to"][place])
    return best is not None and best[1] * CLEARLY < float(own["error"])


def _claimed(place: int, claimed: list[int]) -> str:
    return f"the output of layer {claimed[place]}" if place < len(claimed) else ""


def _shard_words(shard: Mapping[str, Any]) -> str:
    whose = f"rank {shard['rank']} of {shard['of']}"
    if str(shard["kind"]).endswith("turned"):
        return f"begins with the shard of {whose}: parts were joined in another order ({shard['kind']})"
    return f"is the shard of {whose} alone ({shard['kind']})"


def _matched(segments: list[Segment], extra: Mapping[str, Pair | None], tolerance: float) -> Verdict:
    worst = max(float(one.pair["error"]) for one in segments if one.pair is not None)
    off = [name for name, found in extra.items() if not _close(found, tolerance)]
    if off:
        return Verdict(
            "differs",
            "the captured states are those of the reference, but what the draft makes of them is not: "
            f"{', '.join(off)} differs",
            "compare the draft's weights with those that the reference was recorded with (fc.weight first)",
            segments,
        )
    layers = [one.served.layer for one in segments if one.served is not None and one.served.layer is not None]
    which = f" (outputs of layers {', '.join(map(str, layers))})" if len(layers) == len(segments) else ""
    return Verdict(
        "match",
        f"all {len(segments)} segments carry the states of the reference{which}: "
        f"largest error {worst:.2%}, tolerance {tolerance:.0%}{_only_norms(segments)}",
        "",
        segments,
    )


def _only_norms(segments: Sequence[Segment]) -> str:
    if all(one.pair is not None and one.pair["max_difference"] is None for one in segments):
        return "; only norms were compared, and layers of about the same norm cannot be told apart by them"
    return ""


def _mismatch(segments: list[Segment], stated: list[int], named: bool) -> Verdict:
    wrong = [one for one in segments if one.state != "match"]
    trained = [
        one.trained.layer for one in segments if one.trained is not None and one.trained.layer is not None
    ]
    layers = trained if len(trained) == len(segments) else []
    state = _pattern(wrong, len(segments))
    sentence = "; ".join(one.sentence for one in wrong)
    if state == "shifted":
        shift = _shift(wrong[0])
        sentence = (
            f"every segment is {abs(shift)} layer{'s' if abs(shift) > 1 else ''} too "
            + ("late" if shift > 0 else "early")
            + f": {sentence}"
        )
    return Verdict(state, sentence, _advice(state, layers, stated, named), segments, layers)


def _shift(segment: Segment) -> int:
    served, trained = segment.served, segment.trained
    if served is None or trained is None or served.layer is None or trained.layer is None:
        return 0
    return served.layer - trained.layer


def _pattern(wrong: Sequence[Segment], count: int) -> str:
    states = {one.state for one in wrong}
    shifts = {_shift(one) for one in wrong}
    if len(wrong) == count and len(shifts) == 1 and shifts != {0} and count > 1:
        return "shifted"
    if len(states) > 1:
        return "other-layers" if states <= {"layer", "permuted", "embedding", "final-norm"} else "differs"
    state = states.pop()
    return "other-layers" if state == "layer" else state


def _advice(state: str, layers: list[int], stated: list[int], named: bool) -> str:
    """What to change. The reference's own layers, where they could be named, are what training used."""
    if state in ("shifted", "other-layers", "permuted", "embedding", "final-norm") and layers:
        if sorted(layers) != layers:
            return f"the reference joins layers {layers}, which are not ascending: no release can serve that order"
        if layers != stated:
            was = f" (it is {stated})" if stated else ""
            return f"set sglang_server_training_layers: {layers}{was} and run debug.yml again"
        return (
            f"sglang_server_training_layers is {layers} already, so the release reads the served ids otherwise: "
            "look at `captured` and `recommended_ids` of sglang_draft_check with site_packages of this release"
        )
    if state == "permuted":
        return (
            "put sglang_server_training_layers into the order in which training joined the states (ascending)"
        )
    if state == "token-shift":
        return "dump the reference again with one row a prompt token, from the first token on"
    if state == "shard":
        return "compare tp_size, dp attention and sequence parallelism with a server that has tp_size 1"
    if not named:
        return "run the comparison again with all_layers: true, which names the state that is served"
    return (
        "check that reference, target and prompt belong together: same weights, quantization, chat template"
    )
