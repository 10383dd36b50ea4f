"""One comparison from end to end: read the reference, arm the probes, send its prompt, judge; or record a reference."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..accept.client import Client
from ..errors import AerieError, ErrorKind
from ..release.child import ChildFailed, ChildJob, Finished, run_child
from . import child as hidden_child
from .events import Lines, Served
from .probe import Probes, silent
from .reference import Reference, read_json_reference, small_figures, unusable
from .verdict import Candidate, Verdict, decide, tolerance_for, width_verdict

MISMATCH = ErrorKind(
    "hidden-states-differ",
    "In debug mode the draft does not get the hidden states that it was trained on. The server answers rightly all "
    "the same, since the target checks every draft; it is only slow.",
)
COMPARE_FAILED = ErrorKind(
    "hidden-comparison-failed",
    "The release's python could not read or compare the tensors of the reference and of the probes.",
)
CACHED = ErrorKind(
    "hidden-prompt-cached",
    "The server took a part of the reference prompt from its prefix cache, so its hidden states were not all computed.",
)
MARK = "AERIE-HIDDEN "
LEAST_TOKENS = 4
_SHARD_PARTS = hidden_child.SHARDS
_EXTRA = "draft_fc"


@dataclass(frozen=True)
class Settings:
    """What to compare and how. Times in seconds. ``user`` None: whoever runs this."""

    probes: str
    user: str | None
    child: ChildJob
    training_layers: tuple[int, ...] = ()
    tolerance: float | None = None
    all_layers: bool = True
    forwards: int = 4
    timeout: float = 120.0


Run = Callable[[ChildJob, str, bytes, "str | None"], Finished]


def read_reference(path: str, child: ChildJob, run: Run = run_child) -> Reference:
    """The reference at ``path``: JSON here, tensors in the release's python."""
    if not Path(path).is_file():
        raise unusable(path, "there is no such file on the host")
    if path.endswith(".json"):
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise unusable(path, f"{type(error).__name__}: {error}") from error
        return read_json_reference(text, path)
    answer, _ = _child(child, {"do": "look", "reference": path}, path, run)
    return Reference(tuple(answer["ids"]), tuple(answer["layers"]), (), int(answer["width"]))


def compare(
    client: Client, reference: Reference, path: str, settings: Settings, run: Run = run_child
) -> tuple[Verdict, dict[str, Any]]:
    """The verdict, and the figures behind it for the table and the page."""
    if len(reference.ids) < LEAST_TOKENS:
        raise unusable(
            path, f"its prompt has {len(reference.ids)} tokens; at least {LEAST_TOKENS} are needed"
        )
    with Probes(settings.probes, settings.user) as probes:
        found = _replay(client, probes, reference.ids, settings, tensors=not reference.small)
        try:
            return _judge(reference, path, found, settings, run)
        finally:
            probes.remove_tensors()


def record(
    client: Client, ids: Sequence[int], settings: Settings, metadata: Mapping[str, Any], run: Run = run_child
) -> tuple[bytes, dict[str, Any]]:
    """A reference made from the running server: the bytes of a safetensors file, and what it holds."""
    with Probes(settings.probes, settings.user) as probes:
        found = _replay(client, probes, ids, settings, tensors=True)
        try:
            states = _states(found)
            layers = _captured(found)
            job = {
                "do": "record",
                "ids": list(ids),
                "directory": settings.probes,
                "served": states.tensor,
                "extra": {_EXTRA: found.draft_fc.tensor} if found.draft_fc and found.draft_fc.tensor else {},
                "metadata": {**metadata, "training_layers": layers},
                "out": "reference.safetensors",
            }
            answer, file = _child(settings.child, job, "(new)", run, "reference.safetensors")
        finally:
            probes.remove_tensors()
    if file is None:
        raise _failed(["the file that was to be written is not there"])
    return file, {"shape": answer["shape"], "training_layers": layers, "tokens": len(ids)}


def mismatch(verdict: Verdict, page: str) -> AerieError:
    """The error of a verdict that is no match."""
    evidence = [one.sentence for one in verdict.segments if one.state == "match"]
    if page:
        evidence.append(f"table and picture: {page}")
    return MISMATCH.error(verdict.sentence, evidence=evidence, next=verdict.next)


def _replay(
    client: Client, probes: Probes, ids: Sequence[int], settings: Settings, *, tensors: bool
) -> Served:
    """Send the prompt with nothing of it in the prefix cache, and read what the probes say about it."""
    cached = 0
    for _ in range(2):
        offset = probes.size()
        arm = probes.arm(forwards=settings.forwards, tensors=tensors, layers=settings.all_layers)
        lines = Lines(arm)
        body = {
            "input_ids": list(ids),
            "sampling_params": {"temperature": 0.0, "max_new_tokens": 1},
            "extra_key": arm,  # a part of the prefix cache of its own, in the releases that know it
        }
        answer = client.post("/generate", body, settings.timeout)
        meta = answer.get("meta_info") if isinstance(answer, Mapping) else None
        cached = int(meta.get("cached_tokens") or 0) if isinstance(meta, Mapping) else 0
        if cached:
            client.get("/flush_cache", settings.timeout)
            continue
        found = probes.wait(lines, offset, len(ids), _complete, settings.timeout)
        probes.arm(forwards=0, tensors=False, layers=False)  # else the next requests are recorded too
        if found.states is None:
            raise silent(settings.probes, lines, len(ids))
        return found
    raise CACHED.error(
        f"{cached} of {len(ids)} tokens of the prompt came from the prefix cache",
        evidence=["/flush_cache did not help: it is refused while requests run"],
        next="compare while nobody else uses the server, or set disable_radix_cache in debug mode",
    )


def _complete(found: Served) -> bool:
    return found.draft is not None and found.draft_fc is not None


def _states(found: Served) -> Any:
    states = found.states
    if states is None or not states.tensor:
        raise _failed(["the probes wrote no tensors of what the draft got"])
    return states


def _captured(found: Served) -> list[int]:
    """The layer outputs that the probes say were captured: loop index i is the output of layer i - 1."""
    return [one.layer - 1 for one in found.aux if one.layer is not None]


def _judge(
    reference: Reference, path: str, found: Served, settings: Settings, run: Run
) -> tuple[Verdict, dict[str, Any]]:
    stated = list(settings.training_layers or reference.layers)
    dtype = (found.aux[0] if found.aux else found.states).dtype if found.states else ""
    tolerance = tolerance_for(dtype, settings.tolerance)
    usable = [one for one in found.candidates if reference.small or one[2].tensor]
    details: dict[str, Any] = {
        "tolerance": tolerance,
        "dtype": dtype,
        "prompt_tokens": len(reference.ids),
        "captured_layers": _captured(found),
        "training_layers": stated,
        "candidates": [name for name, _, _ in usable],
    }
    verdict = _width(reference, found, stated)
    if verdict is not None:
        return verdict, {**details, "figures": {}}
    if reference.small:
        figures = small_figures(reference, found)
    else:
        figures = _tensor_figures(reference, path, found, usable, tolerance, settings, run)
    candidates = [Candidate(name, layer) for name, layer, _ in usable]
    verdict = decide(figures, candidates, tolerance, stated, details["captured_layers"])
    return verdict, {**details, "figures": figures}


def _width(reference: Reference, found: Served, stated: Sequence[int]) -> Verdict | None:
    """A verdict where the widths alone say that something is wrong; else None."""
    got = found.states.width if found.states else 0
    if reference.small:
        one = found.aux[0].width if found.aux else 0
        wanted, count = one * len(reference.known), len(reference.known)
    else:
        wanted, count = reference.width or 0, _count(reference, found, stated)
    if got == wanted:
        return None
    if got * count != wanted and wanted % got == 0 and wanted // got in _SHARD_PARTS:
        return None  # a shard: the figures will say whose
    return width_verdict(got, wanted, count)


def _count(reference: Reference, found: Served, stated: Sequence[int]) -> int:
    """How many states are joined."""
    return len(stated) or len(reference.layers) or len(found.aux) or 3


def _tensor_figures(
    reference: Reference,
    path: str,
    found: Served,
    usable: Sequence[tuple[str, int | None, Any]],
    tolerance: float,
    settings: Settings,
    run: Run,
) -> dict[str, Any]:
    states = _states(found)
    count = _count(reference, found, settings.training_layers)
    job = {
        "do": "compare",
        "reference": path,
        "directory": settings.probes,
        "rows": len(reference.ids),
        "tolerance": tolerance,
        "served": states.tensor,
        "served_width": max(1, states.width // count),
        "segments": count,
        "candidates": [{"name": name, "tensor": event.tensor} for name, _, event in usable],
        "extra": {_EXTRA: found.draft_fc.tensor} if found.draft_fc and found.draft_fc.tensor else {},
    }
    answer, _ = _child(settings.child, job, path, run)
    return answer


def _child(
    child: ChildJob, job: dict[str, Any], path: str, run: Run, file: str | None = None
) -> tuple[dict[str, Any], bytes | None]:
    """One job in the release's python. Its source travels as text: the python need not see this project."""
    try:
        done = run(child, inspect.getsource(hidden_child), json.dumps({**job, "mark": MARK}).encode(), file)
    except ChildFailed as error:
        raise _failed([str(error), f"python {child.python}"]) from error
    answer = done.answer(MARK)
    if "unusable" in answer:
        raise unusable(path, str(answer["unusable"]))
    if not answer or "error" in answer:
        raise _failed([str(answer.get("error") or done.last_words), f"python {child.python}"])
    return answer, done.file


def _failed(evidence: list[str]) -> AerieError:
    return COMPARE_FAILED.error(
        "the release's python could not compare the hidden states",
        evidence=evidence,
        next="check that the service user can read the reference, and that the python is the release's",
    )
