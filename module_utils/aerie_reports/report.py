"""One self-contained page, ``results.json``, and ``best.yml`` for ``-e @file``."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import jinja2
from ansible.module_utils.aerie.files import read_json, write_atomic, write_json

from . import plots, tables
from .analysis import analyse
from .estimates import Estimate
from .sweep import Record, Sweep
from .words import PART_NAMES, as_yaml, judged, largest_part, not_quiet

PAGE, FIGURES, BEST, LIVE = "report.html", "results.json", "best.yml", "results-so-far.json"
TITLES = {
    "benchmark": "Is speculation worth it here?",
    "tune": "The best setting, and why",
    "profile": "Where a decode cycle's time goes",
}
TONES = {"gains": "#0f8a63", "loses": "#cf3d3d", "same": "#b96a0c"}


def write_report(
    place: Path, sweep: Sweep, records: Sequence[Record], about: Mapping[str, Any], *, final: bool = True
) -> dict[str, Any]:
    """Write the files and return the results. ``final`` false: the sweep stays unfinished and can be resumed."""
    results = analyse(sweep, records)
    results["about"] = {name: about[name] for name in ("host", "instance", "server", "load", "base")}
    results["parts"] = _parts(results, about, place)
    results["written"] = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    write_atomic(place / PAGE, page(results, about, records, place))
    head = "---\n# Made by tune.yml; see report.html. ansible-playbook production.yml -e @best.yml\n"
    write_atomic(place / BEST, head + (as_yaml(results["variables"]) or "{}\n"))
    write_json(place / (FIGURES if final else LIVE), results)
    return results


def _parts(results: Mapping[str, Any], about: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Parts of a cycle: this very profile's, or those that the newest profile.yml of the same server left."""
    if results["profile"]:
        return {"batches": results["profile"], "from": "the timers in the server's source"}
    for path in sorted(place.parent.glob(f"*/{FIGURES}"), reverse=True):
        other = read_json(path)
        if not isinstance(other, dict) or other.get("kind") != "profile" or not other.get("profile"):
            continue
        if all(other["about"][name] == about[name] for name in ("host", "server")):
            steps = other["about"]["base"]["speculative"].get("num_steps")
            source = f"profile.yml on {other['written'][:10]}, with {steps} steps"
            return {"batches": other["profile"], "from": source}
    return {"batches": [], "from": ""}


def page(results: Mapping[str, Any], about: Mapping[str, Any], records: Sequence[Record], place: Path) -> str:
    """The page's HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    # A factor stays in one piece, and is written with the sign that people read.
    environment.filters["times"] = lambda text: re.sub(r"\bx (?=\d)", "×\u00a0", str(text))
    server = about["server"]
    return environment.get_template("report.html.j2").render(
        results=results,
        about=about,
        kicker=f"Aerie {results['kind']}",
        title=TITLES[results["kind"]],
        target=PurePosixPath(server["target"]).name or "target",
        draft=PurePosixPath(server["draft"]).name or "no draft",
        when=time.strftime("%d %B %Y, %H:%M", time.localtime()),
        took=_duration(results["seconds"]),
        double=about["base"]["arguments"].get("device") == "cpu",
        hero=_hero(results),
        tiles=_tiles(results),
        plots=_plots(results),
        table=tables.table(results),
        best_file=place / BEST,
        method=_method(results, about, records),
        method_open=results["kind"] != "tune",
    )


def _chosen(results: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The setting that the page is about: the recommended one, in a benchmark the speculating one."""
    wanted = None if results["kind"] == "tune" else "base"
    for setting in results["settings"]:
        if setting["status"] != "measured":
            continue
        if setting["kind"] == wanted or (wanted is None and setting["name"] == results["recommended"]):
            return setting
    return None


def _at(setting: Mapping[str, Any] | None, results: Mapping[str, Any]) -> Mapping[str, Any]:
    return {} if setting is None else setting["batches"].get(str(results["objective"]), {})


def _hero(results: Mapping[str, Any]) -> dict[str, str]:
    if results["profile"]:
        first = results["profile"][0]
        part = largest_part(first)
        unit = f"of a {first['cycle_ms']:.2f} ms cycle is {PART_NAMES[part]}, batch {first['batch']}"
        return {"big": f"{100 * first['parts'][part]['share']:.0f} %", "unit": unit, "tone": "#2451d6"}
    chosen = _chosen(results)
    at = _at(chosen, results)
    size = results["objective"]
    if chosen is not None and chosen["kind"] == "baseline":
        return {"big": "off", "unit": f"speculation at batch {size}", "tone": TONES["loses"]}
    if not at.get("speedup"):
        return {"big": "?", "unit": "not known", "tone": TONES["same"]}
    speedup = Estimate.from_dict(at["speedup"])
    unit = f"[{speedup.low:.2f}, {speedup.high:.2f}] against no speculation, batch {size}"
    tone = "same" if not_quiet(results) else judged(speedup)
    return {"big": f"× {speedup.value:.2f}", "unit": unit, "tone": TONES[tone]}


def _tiles(results: Mapping[str, Any]) -> list[dict[str, str]]:
    chosen = _chosen(results)
    at = _at(chosen, results)
    if chosen is None or not at:
        return []
    size = results["objective"]
    rate, ttft, itl = (Estimate.from_dict(at[name]) for name in ("rate", "ttft_ms", "itl_ms"))
    tiles = [
        {
            "label": f"output at batch {size}",
            "value": f"{rate.value:.1f}",
            "unit": "tok/s",
            "note": _span(rate, 1),
        },
        {"label": "between tokens, median", "value": f"{itl.value:.2f}", "unit": "ms", "note": _span(itl, 2)},
        {
            "label": "to the first token, median",
            "value": f"{ttft.value:.0f}",
            "unit": "ms",
            "note": _span(ttft, 0),
        },
    ]
    if at.get("over_base"):
        gain = Estimate.from_dict(at["over_base"])
        tiles.insert(
            1,
            {
                "label": "against the inventory's",
                "value": f"× {gain.value:.2f}",
                "unit": "",
                "note": _span(gain, 2),
            },
        )
    if chosen["accept_length"]:
        length = Estimate.from_dict(chosen["accept_length"])
        tiles.append(
            {
                "label": "tokens gained per verify",
                "value": f"{length.value:.2f}",
                "unit": "",
                "note": _span(length, 2),
            }
        )
    return tiles


def _span(estimate: Estimate, digits: int) -> str:
    return f"[{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def _plots(results: Mapping[str, Any]) -> list[dict[str, str]]:
    chosen = _chosen(results)
    name = "" if chosen is None else chosen["name"]
    drawn = [
        (
            "Speed over chain length",
            "Predicted from one long chain and the cost of a cycle; the points were started and measured.",
            plots.speed_over_steps(results) if results["kind"] == "tune" else None,
        ),
        (
            "Speed-up by batch size",
            "Above the line speculation is faster. The more requests run at a time, the less it can gain.",
            plots.speedup_by_batch(results, name) if len(results["batch_sizes"]) > 1 else None,
        ),
        (
            "Parts of a decode cycle",
            f"Medians from {results['parts']['from']}; the share is of the time of all cycles.",
            plots.parts_of_cycle(results["parts"]["batches"]),
        ),
        (
            "Acceptance by draft position",
            "Bars: of all verifies. Line: of those in which the position before was accepted.",
            plots.acceptance(results),
        ),
        (
            "What a decode cycle costs",
            "Whole cycles cannot tell drafting from verifying: profile.yml can.",
            plots.cycle_cost(results),
        ),
        (
            "Communication and other candidates",
            "Each changes one thing of the best chain (grey).",
            plots.variations(results),
        ),
    ]
    return [{"title": title, "sub": sub, "svg": svg} for title, sub, svg in drawn if svg]


def _method(results: Mapping[str, Any], about: Mapping[str, Any], records: Sequence[Record]) -> list[str]:
    load, server = about["load"], about["server"]
    made = next((r.result["generator"] for r in records if r.result.get("generator")), {})
    prompts = next((r.result["prompt_set"] for r in records if r.result.get("prompt_set")), {})
    lines = [
        f"Load: {made.get('module', 'bench_serving')} of SGLang {made.get('release') or server['release']}, "
        f"{load['prompts']} prompts ({prompts.get('source', 'unknown')}, sha256 "
        f"{str(prompts.get('sha256', ''))[:12]}), at most {load['max_new_tokens']} tokens an answer, temperature 0, in "
        f"whole rounds of the set{_lasting(load)}; warm-up left out.",
        f"The limit of concurrent requests is the same in every setting: {server['max_running_requests']}.",
        "Every setting went the way of a production server: built, started, gated, then measured. Each ran at the same "
        "port with the same models.",
        "Intervals: 95 %, BCa bootstrap over prompts, fixed seed (SciPy). Settings are compared prompt by prompt.",
        "Accept length: tokens gained per verify, bonus token included, from the counters in each answer.",
    ]
    lines += [str(note) for note in about.get("notes", [])]
    if results["kind"] == "profile":
        lines += _timers(results)
    if results["kind"] == "tune":
        lines += [
            "Prediction: the longest chain shows how often each position is accepted, hence the accept length of every "
            "shorter chain; the cycle's cost comes from the chains that were measured. A measured chain is predicted "
            "from the others, so that its error can be told.",
            "Costs that jump between two lengths cannot be predicted; sglang_tune_exhaustive: true starts them all.",
            "Presets and candidates were tried on the best chain, one change at a time; combinations were not.",
        ]
    return lines


def _lasting(load: Mapping[str, Any]) -> str:
    """How long a load lasted at least, where that was asked for (sweeps of earlier versions did not)."""
    least = float(load.get("least_seconds") or 0)
    return f", {least:g} s at least at each batch size" if least else ""


def _timers(results: Mapping[str, Any]) -> list[str]:
    """How the parts of a cycle were timed, and where the trace lies."""
    clocks = {"cuda_event": "CUDA events", "monotonic": "the CPU's clock"}
    used = " and ".join(sorted({clocks.get(one["clock"], one["clock"]) for one in results["profile"]}))
    lines = [
        f"Timers: a line for each decode cycle from the server's own copy of the source, by {used}. Cycles before the "
        "load are left out, and those that a prefill interrupted."
    ]
    place = (results["trace"] or {}).get("directory")
    return lines + (
        [f"Torch trace: {place} on the host, until the next one. Perfetto opens it."] if place else []
    )


def _duration(seconds: float) -> str:
    minutes = int(seconds // 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
