"""What every source patch does in every release: the table docs/patch-releases.md.

    python tests/releases/patch_table.py           # compare with the releases, print what differs
    python tests/releases/patch_table.py --write   # look at every release and write the page

A row is an entry; its cells name the releases in which it is applied, is there already, or is not applicable. The
releases of a cell are runs in the order of wheels.txt, so that the page stays readable with seventy of them.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parents[1] / "module_utils"))

import fetch

from aerie.patch import catalogue as patch_catalogue
from aerie.patch import tree as patch_tree
from aerie.patch.compose import ALREADY_UPSTREAM, APPLIED, NOT_APPLICABLE
from aerie.patch.entry import Entry, parse_entries

PAGE = HERE.parents[1] / "docs" / "patch-releases.md"
STATES = (APPLIED, ALREADY_UPSTREAM, NOT_APPLICABLE)
SETS = ("fixes", "debug", "profile")
HEAD = """# Source patches by release

Written by `python tests/releases/patch_table.py --write` from SGLang's own wheels: {count} releases, {first} to {last}.

`make releases` applies every entry in each of them: the anchor is there exactly once, the result compiles, a second
apply changes nothing, and reverting leaves every byte as published. It fails when a cell differs. `make test` does
the same for {spread}.

*Applied*: the code goes in. *Upstream*: the release has it already. *Not applicable*: outside the entry's range; there
the class or its capture does not exist, another entry does the same, or nothing is broken.
"""


def entries(sets: Sequence[str] = SETS) -> list[Entry]:
    """The catalogue's entries of these sets."""
    return parse_entries(patch_catalogue.inline(sets))


def copied(tree: Path, site: Path, wanted: Iterable[Entry]) -> None:
    """A site-packages of the files that the entries are for, with the release's dist-info."""
    for info in tree.glob("*.dist-info"):
        shutil.copytree(info, site / info.name)
    (site / "sglang" / "srt").mkdir(parents=True)
    for name in {entry.file for entry in wanted}:
        if (tree / name).is_file():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, site / name)


def states_of(result: patch_tree.TreeResult) -> dict[str, str]:
    """Entry to what became of it."""
    return {
        name: state for file in result.files for name, state in file["patches"].items() if name != "probe"
    }


def look(release: str) -> dict[str, str]:
    """Entry to its state in a release, from the wheel."""
    wanted = entries()
    with tempfile.TemporaryDirectory() as name:
        site = Path(name)
        copied(fetch.tree(release), site, wanted)
        return states_of(patch_tree.apply(site, release, wanted))


def runs(chosen: Iterable[str], known: Sequence[str]) -> str:
    """``a to c, e``: the chosen ones of the known, in their order."""
    wanted, groups, last = set(chosen), [], -2
    for number, release in enumerate(known):
        if release in wanted:
            groups = [*groups[:-1], [*groups[-1], release]] if number == last + 1 else [*groups, [release]]
            last = number
    return ", ".join(f"{group[0]} to {group[-1]}" if len(group) > 1 else group[0] for group in groups)


def members(cell: str, known: Sequence[str]) -> list[str]:
    """The releases of a cell. Raises ValueError for one that is not known."""
    found: list[str] = []
    for run in filter(None, cell.strip().split(", ")):
        first, _, last = run.partition(" to ")
        found += known[known.index(first) : known.index(last or first) + 1]
    return found


def page(table: dict[str, dict[str, str]], spread: Sequence[str]) -> str:
    """The document. table: release to entry to state."""
    known = list(table)
    lines = [HEAD.format(count=len(known), first=known[0], last=known[-1], spread=", ".join(spread))]
    for name in SETS:
        lines += [
            f"\n## {name}\n",
            "| entry | file | applied | upstream | not applicable |",
            "|---|---|---|---|---|",
        ]
        for entry in entries([name]):
            cells = [runs((r for r in known if table[r][entry.name] == state), known) for state in STATES]
            lines.append(f"| {entry.name} | {Path(entry.file).name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def committed() -> dict[str, dict[str, str]]:
    """The page's table: release to entry to state. Raises ValueError when a cell is missing or there twice."""
    known = list(fetch.known())
    table: dict[str, dict[str, str]] = {release: {} for release in known}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or len(cells) != 5 or cells[0] == "entry":
            continue
        for state, cell in zip(STATES, cells[2:], strict=True):
            for release in members(cell, known):
                if cells[0] in table[release]:
                    raise ValueError(f"{cells[0]} is there twice for {release}")
                table[release][cells[0]] = state
    names = {name for row in table.values() for name in row}
    for release, row in table.items():
        if names - set(row):
            raise ValueError(f"{release}: nothing about {', '.join(sorted(names - set(row)))}")
    return table


def main() -> int:
    """Compare, or write."""
    from test_patches import SPREAD

    fetch.trees(fetch.known())
    table = {release: look(release) for release in fetch.known()}
    text = page(table, SPREAD)
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    known = committed()
    wrong = [
        f"{release}: {name}: {state}, the page says {known.get(release, {}).get(name)}"
        for release, row in table.items()
        for name, state in row.items()
        if known.get(release, {}).get(name) != state
    ]
    print("\n".join(wrong) or f"{len(table)} releases as the page says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
