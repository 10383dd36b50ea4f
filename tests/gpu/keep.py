#!/usr/bin/env python3
"""Make a dated record of what a run brought back: `tests/gpu/keep.py OUT WHAT`, here, after the machine is gone.

OUT holds record.json, record.md and logs.tar.gz. `results/<date>-WHAT` gets them, with the measurements, the HTML
reports, each step's output cut to its end, and a README with a line for each figure.
"""

from __future__ import annotations

import argparse
import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Lines of a log that are kept: the recap and what failed stand at its end.
LINES = 120
WHOLE = ("speed.json", "graphs.json", "nccl.json", "timeline.jsonl", "results.json", "hardening.security.txt")
LARGEST = 2 << 20
# The pages of the wiring table's comparisons differ by a row each, and the table has the rows: one of them is kept.
EXAMPLE = "hidden-states-w-off-by-one.html"


def rows(record: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(figure, value, step) of what a person asks first; what a step did not measure is left out."""
    facts = {step["name"]: step.get("facts") or {} for step in record["steps"]}
    seconds = {step["name"]: step["seconds"] for step in record["steps"] if step["ok"]}
    found: list[tuple[str, str, str]] = []

    def add(figure: str, value: object, step: str) -> None:
        if value not in (None, [], {}, ""):
            found.append((figure, value if isinstance(value, str) else json.dumps(value), step))

    for name, spent in seconds.items():
        add(f"seconds of {name}", spent, name)
    for name, one in facts.items():
        for way in ("debug", "back"):
            if isinstance(one.get(way), dict):
                add(f"{name}, {way}: seconds", one[way].get("seconds"), name)
                add(f"{name}, {way}: NVML's empty card to the next task", one[way].get("gpu"), name)
                add(f"{name}, {way}: the road said", "; ".join(one[way].get("said") or []), name)
    for row in facts.get("wiring", {}).get("table", []):
        text = f"stopped by {', '.join(row['stopped_by']) or 'nothing'}; accept length {row.get('accept_length')}; "
        text += str((row.get("hidden_states") or {}).get("verdict", ""))
        add(f"draft {row['case']}", text, "wiring")
    speed = facts.get("speed", {})
    for batch, one in (speed.get("best") or {}).items():
        add(f"best chain at batch {batch}", one, "speed")
    for batch in ("1", "8", "32"):
        add(f"5 steps against none at batch {batch}", (speed.get("gain") or {}).get(batch), "speed")
        add(f"graphs on against off at batch {batch}", (speed.get("graphs") or {}).get(batch), "speed")
        add(
            f"Aerie against by hand at batch {batch}",
            (speed.get("aerie_against_by_hand") or {}).get(batch),
            "speed",
        )
    for batch, one in (speed.get("tune") or {}).items():
        if isinstance(one, dict):
            keys = ("started", "chosen", "exhaustive_best", "regret", "largest_off")
            add(f"tune's search at batch {batch}", {key: one.get(key) for key in keys}, "speed")
    for step in ("profile", "benchmark", "tune"):
        add(f"what {step}.yml ends with", " ".join(facts.get(step, {}).get("verdict") or []), step)
    for step in ("time-to-ready", "ready-parts"):
        ready = facts.get(step, {})
        for way, ratio in (ready.get("against by hand") or {}).items():
            add(f"time to ready, {way} / by hand", ratio, step)
        for name in ("seconds", "processor_s", "unit_executed_s", "marks"):
            add(
                f"time to ready, rounds: {name}",
                [one[name] for one in ready.get("rounds") or []] or None,
                step,
            )
    add("exposure of the unit", facts.get("hardening", {}).get("exposure"), "hardening")
    for name in ("kills", "speed-kills"):
        for victim, one in (facts.get(name, {}).get("kills") or {}).items():
            add(f"{victim} killed: healthy again after seconds", one.get("healthy_again_s"), name)
    killed = facts.get("two-kill", {}).get("kill") or {}
    add("one scheduler of two killed: healthy again after seconds", killed.get("healthy_again_s"), "two-kill")
    add(
        "one scheduler of two killed: seconds until each card is empty",
        facts.get("two-kill", {}).get("empty_after_s"),
        "two-kill",
    )
    add("all-reduce at TP 2", facts.get("two-production", {}).get("all_reduce"), "two-production")
    add("NCCL presets", (facts.get("two-nccl", {}).get("verdict") or {}).get("sentence"), "two-nccl")
    for name, one in (facts.get("two-nccl", {}).get("cycles") or {}).items():
        add(f"cycle with {name}, quartiles in ms by batch", one, "two-nccl")
    for name, one in (facts.get("two-nccl", {}).get("against_default") or {}).items():
        add(f"{name} against n-default at batch 1", one, "two-nccl")
    return found


def readme(record: dict[str, Any], what: str) -> str:
    machine = record["machine"]
    lines = [
        f"# {record['date'][:10]}: {what}",
        "",
        f"Commit {record['commit'] or 'not given'}; SGLang {record.get('release', '0.5.17')}; torch {machine['torch']};"
        f" GPU {machine['gpu']}; kernel {machine['kernel']}; host {machine['host'].splitlines()[0]}.",
        "Made by `tests/gpu/run.py`; the commands stand in record.json, step by step.",
        "",
        "| figure | value | step |",
        "|---|---|---|",
        *(f"| {figure} | {value.replace('|', '/')} | {step} |" for figure, value, step in rows(record)),
    ]
    for name, why in (record.get("not_run") or {}).items():
        lines.append(f"\nNot run: {name}: {why}.")
    return "\n".join(lines) + "\n"


def keep(out: Path, what: str, results: Path, checkout: str) -> Path:
    """Write the record of ``out`` below ``results``; returns its directory.

    checkout: path of the checkout on the machine, which is cut out of every text.
    """

    def copy(source: Path, target: Path, lines: int | None = None) -> None:
        text = source.read_text(errors="replace").replace(checkout, ".")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text if lines is None else "\n".join(text.splitlines()[-lines:]) + "\n")

    record = json.loads((out / "record.json").read_text())
    if "rehearsal" in record:
        raise SystemExit("keep: a rehearsal's figures are those of doubles; there is nothing to keep")
    place = results / f"{record['date'][:10]}-{what}"
    place.mkdir(parents=True)
    for name in ("record.json", "record.md"):
        copy(out / name, place / name)
    (place / "README.md").write_text(readme(record, what))
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(out / "logs.tar.gz") as archive:
            archive.extractall(scratch, filter="data")
        logs = Path(scratch) / "logs"
        for path in sorted(logs.rglob("*")):
            relative = path.relative_to(logs)
            if not path.is_file() or path.stat().st_size > LARGEST:
                continue
            if path.name.startswith("hidden-states-w-") and path.name != EXAMPLE:
                continue
            if path.name in WHOLE or path.suffix == ".html":
                copy(path, place / relative)
            elif path.suffix == ".log" and not path.name.endswith(".ansible.log"):
                copy(path, place / "logs" / path.name, LINES)
    return place


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("what", help="one word or a few, joined by dashes: one-h200")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--checkout", default=str(HERE.parents[1]), help="its path on the machine")
    options = parser.parse_args()
    print(f"keep: {keep(options.out, options.what, options.results, options.checkout)}")


if __name__ == "__main__":
    main()
