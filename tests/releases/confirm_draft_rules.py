"""Confirm every rule of module_utils/aerie/draft/families.py on real wheels, and print what was found as Markdown.

    python3 tests/releases/confirm_draft_rules.py DIRECTORY > table.md

DIRECTORY holds one directory a release, named by it, with the unpacked wheel (…/0.5.23/sglang/srt/…). Not part of
`make test`, since the wheels are not. Ends with 1 when a rule is contradicted, or when a release has a target that can
capture and that the tables do not know.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "module_utils"))

from aerie.draft import source as draft_source
from aerie.draft.case import Settings
from aerie.draft.confirm import CONFIRMED, CONTRADICTED, confirm
from aerie.draft.families import FAMILIES, USE_AUX_READ, Family, at_least, family_of
from aerie.draft.layer_ids import outputs
from aerie.draft.source import SourceTree
from aerie.draft.source_graph import graph_keeps_ids, reads_ids
from aerie.draft.wiring import target_rules
from aerie.release.rules import version_key

LAYERS = 61
# Classes with the method that are no targets of an EAGLE-3 draft: draft and MTP classes that inherit it, an embedding
# model, and a wrapper whose inner model is chosen at run time.
NO_TARGETS = ("NextN", "MTP", "CausalLMEagle", "Eagle3", "Assistant", "EmbeddingGemma", "MindSpore")


@dataclass
class Row:
    """One release. states: architecture to what the source says about its rule."""

    release: str
    graphs: str
    ids: str
    use_aux: str
    states: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    def count(self, state: str) -> list[str]:
        return [architecture for architecture, found in self.states.items() if found == state]


def releases(directory: Path) -> Iterator[Path]:
    found = [entry for entry in directory.iterdir() if (entry / "sglang" / "srt" / "models").is_dir()]
    return iter(sorted(found, key=lambda entry: version_key(entry.name)))


def look(path: Path) -> Row:
    tree, release = SourceTree(path), path.name
    keeps, reads = graph_keeps_ids(tree.package), reads_ids(tree.package)
    row = Row(
        release,
        _graphs(release, keeps, bool(reads)),
        "read" if reads else "not read",
        _use_aux(tree, release),
    )
    for family in FAMILIES:
        for architecture in family.architectures:
            row.states[architecture] = judge(tree, path, family, architecture)
    row.unknown = [
        name
        for name in sorted(set(tree.entry_classes()))
        if family_of(name) is None
        and not any(part in name for part in NO_TARGETS)
        and tree.supports_capture(name)
    ]
    return row


def _graphs(release: str, keeps: bool | None, reads: bool) -> str:
    if keeps is None or not reads:
        return "no ids"
    expected = target_rules("LlamaForCausalLM", LAYERS, release, ()).graph_keeps_ids
    text = "keep the ids" if keeps else "default layers"
    return f"{text}: {CONFIRMED if keeps == expected else CONTRADICTED}"


def _use_aux(tree: SourceTree, release: str) -> str:
    files = (tree.package / "srt" / "model_executor").rglob("*.py")
    reads = any(
        '"use_aux_hidden_state"' in file.read_text(encoding="utf-8", errors="replace") for file in files
    )
    agrees = reads == at_least(release, USE_AUX_READ)
    return f"{'read' if reads else 'not read'}: {CONFIRMED if agrees else CONTRADICTED}"


def judge(tree: SourceTree, path: Path, family: Family, architecture: str) -> str:
    """confirmed, contradicted, rule (not readable), none (neither has it) or missing (only the table has it)."""
    rules = target_rules(architecture, LAYERS, path.name, ())
    settings = Settings(target=path, draft=path, release=path.name, site_packages=path)
    if tree.supports_capture(architecture) is None:
        return "missing" if rules.rule else "none"
    found = confirm(settings, architecture, LAYERS, rules)
    claims = [found.basis[claim] for claim in ("capture_support", "layer_ids", "default_layers")]
    if CONTRADICTED in claims or found.rules.flags != rules.flags:
        return CONTRADICTED
    if rules.rule is None:
        return "none"
    return CONFIRMED if claims[0] == claims[1] == CONFIRMED else "rule"


COLUMNS = (
    "release",
    "layer ids in the draft's config",
    "use_aux_hidden_state",
    "CUDA graphs capture",
    "targets that can capture",
    "contradicted",
    "not in the tables",
)


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table(rows: list[Row]) -> Iterator[str]:
    yield line(COLUMNS)
    yield line(["---"] * len(COLUMNS))
    for row in rows:
        rule = row.count("rule")
        targets = f"{len(row.count(CONFIRMED))} confirmed" + (f", {len(rule)} by rule only" if rule else "")
        bad = ", ".join([*row.count(CONTRADICTED), *row.count("missing")]) or "none"
        yield line(
            [row.release, row.ids, row.use_aux, row.graphs, targets, bad, ", ".join(row.unknown) or "none"]
        )


def meanings(rows: list[Row]) -> Iterator[str]:
    """Per architecture: the rule by release, as far as the wheels were looked at."""
    yield "| target | from release | rule | ids [2, 30, 58] capture the outputs of | [1, 29, 57] |"
    yield "|---|---|---|---|---|"
    for family in FAMILIES:
        for era in family.eras:
            shown = [outputs(era.rule.indices(ids, LAYERS)) for ids in ([2, 30, 58], [1, 29, 57])]
            names = "<br>".join(family.architectures)
            until = f" (until {family.until})" if family.until else ""
            yield f"| {names} | {era.since}{until} | {era.rule.name} | {shown[0]} | {shown[1]} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="one directory a release, with the unpacked wheel")
    parser.add_argument("--only", nargs="*", default=[], help="releases to look at; all when left out")
    arguments = parser.parse_args()
    rows = []
    for path in releases(arguments.directory):
        if arguments.only and path.name not in arguments.only:
            continue
        print(path.name, file=sys.stderr, flush=True)
        rows.append(look(path))
        draft_source.parsed.cache_clear()
    print("\n".join([*table(rows), "", *meanings(rows)]))
    wrong = [row.release for row in rows if row.count(CONTRADICTED) or row.count("missing") or row.unknown]
    wrong += [row.release for row in rows if CONTRADICTED in row.graphs + row.use_aux]
    if wrong:
        print(f"rules and wheels differ: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
