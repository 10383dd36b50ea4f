"""What an instance is for, and what that means for its command, environment and patches.

``production`` serves. ``baseline`` is the same without speculation. ``debug`` is production with probes in the source
and without CUDA graphs, since a replayed graph runs no Python. ``profile`` is production with timers in the source.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..patch.entry import Entry, parse_entries, probe_texts
from ..release.rules import version_key

PRODUCTION, BASELINE, DEBUG, PROFILE = "production", "baseline", "debug", "profile"
MODES = (PRODUCTION, BASELINE, DEBUG, PROFILE)
# Under the instance's cache directory, where the service may write; the probe modules make them, for their user alone.
EVENTS = {DEBUG: "probes", PROFILE: "profile"}


def events_directory(mode: str, cache_dir: str) -> str:
    """Where a mode's probes write what they see; empty in a mode that has none."""
    return f"{cache_dir}/{EVENTS[mode]}" if mode in EVENTS else ""


def environment(mode: str, cache_dir: str) -> dict[str, str]:
    """Variables that switch a mode's probes on."""
    place = events_directory(mode, cache_dir)
    if mode == DEBUG:
        return {"EAGLE3_DEBUG": "1", "EAGLE3_DEBUG_DIR": place}
    return {"AERIE_PROFILE_DIR": place} if mode == PROFILE else {}


def server_arguments(
    mode: str, release: str, arguments: Mapping[str, Any], *, debug_cuda_graphs: bool
) -> dict[str, Any]:
    """The free server arguments (normalised) as the mode wants them."""
    if mode != DEBUG or debug_cuda_graphs:
        return dict(arguments)
    return {**arguments, **without_cuda_graphs(release, arguments)}


def without_cuda_graphs(release: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that switch CUDA graphs off, for decoding and for prefill; None takes a flag of the user's out.

    Read in the source: ``--disable-cuda-graph`` up to 0.5.13, deprecated from 0.5.14 on, where ``--cuda-graph-config``
    beats every other flag; piecewise graphs of prefill are on request up to 0.5.9 and from 0.5.10 on by default.
    """
    version = version_key(release)
    if version >= (0, 5, 14, 0):
        given = arguments.get("cuda_graph_config") or {}
        config = json.loads(given) if isinstance(given, str) else given
        off = {phase: {**(config.get(phase) or {}), "backend": "disabled"} for phase in ("decode", "prefill")}
        return {"cuda_graph_config": {**config, **off}}
    if version >= (0, 5, 10, 0):
        return {
            "disable_cuda_graph": True,
            "disable_piecewise_cuda_graph": True,
            "enforce_piecewise_cuda_graph": None,
        }
    return {"disable_cuda_graph": True, "enable_piecewise_cuda_graph": None}


def patches_for(given: Iterable[Mapping[str, Any]], release: str) -> list[Entry]:
    """The entries (as the module is sent them) that are for the release, in order. Raises bad-patch-entry.

    Each has the texts of its probes: they are sent once, perhaps with an entry that is for other releases.
    """
    entries = parse_entries(given)
    texts = probe_texts(entries)
    return [
        replace(entry, probes={path: texts[path] for path in entry.probes})
        for entry in entries
        if entry.for_release(release)
    ]


def patch_record(given: Sequence[Mapping[str, Any]], release: str) -> list[dict[str, str]]:
    """What a spec keeps of them: ``{name, sha256}``; the hash covers code, place and the texts of probes."""
    entries = parse_entries(given)
    texts = probe_texts(entries)
    return [{"name": one.name, "sha256": one.sha256(texts)} for one in entries if one.for_release(release)]
