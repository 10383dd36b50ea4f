"""The catalogue of patches, read on the controller: from YAML files and an inventory to the list that modules take.

Not part of any module: it needs PyYAML, and paths of the controller. Action plugins and filters share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..errors import ErrorKind
from .entry import BAD_ENTRY, SETS, check_path, parse_entries, probe_texts

NO_CATALOGUE = ErrorKind("patch-catalogue-missing", "The catalogue of source patches cannot be read.")
UNKNOWN_PATCH = ErrorKind("unknown-patch", "A patch was asked for that is neither a set nor an entry's name.")

DEFAULT = Path(__file__).resolve().parents[3] / "roles" / "sglang_patches" / "files" / "catalogue"
# Read for every step of a run, in a process of its own; in Python alone it takes some tenths of a second.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
PROBE_DIRECTORY = "sglang/srt"


def inline(
    wanted: Sequence[str], own: Iterable[Mapping[str, Any]] = (), catalogue: str | Path = ""
) -> list[dict[str, Any]]:
    """The wanted entries, checked, in catalogue order, then one's own; each probe's text is with one entry only.

    wanted: sets (``fixes``, ``debug``, ``profile``, ``own``) or names of entries. own: entries of the inventory; one
    without a set is in ``own``. catalogue: a file or directory; empty for the role's. Raises bad-patch-entry,
    patch-catalogue-missing, unknown-patch.
    """
    given = [*load(Path(catalogue) if catalogue else DEFAULT), *({"set": "own", **one} for one in own)]
    entries = parse_entries(given)
    known = {entry.name for entry in entries}
    for name in wanted:
        if name not in known and name not in SETS:
            raise UNKNOWN_PATCH.error(
                f"no patch or set is called {name!r}",
                evidence=[f"sets: {', '.join(SETS)}", f"patches: {', '.join(sorted(known)) or 'none'}"],
                next="name one of these",
            )
    chosen = [raw for raw, entry in zip(given, entries, strict=True) if {entry.name, entry.set} & set(wanted)]
    return _texts_once(chosen, probe_texts(entries))


def load(place: Path) -> list[dict[str, Any]]:
    """All entries of a YAML file, or of a directory's ``*.yml`` by name. Probes become ``{path: text}``."""
    files = sorted(place.glob("*.yml")) if place.is_dir() else [place]
    return [entry for file in files for entry in _read(file)]


def _read(file: Path) -> list[dict[str, Any]]:
    try:
        given = yaml.load(file.read_text(encoding="utf-8"), Loader=_LOADER)
    except (OSError, yaml.YAMLError) as error:
        raise NO_CATALOGUE.error(
            f"{file} cannot be read",
            evidence=str(error).splitlines()[:5],
            next="correct the path or the file",
        ) from None
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise NO_CATALOGUE.error(f"{file} is no list of entries", next="begin each entry with `- name:`")
    return [{**one, "probes": _probes(file, one)} if one.get("probes") else one for one in given]


def _probes(file: Path, entry: Mapping[str, Any]) -> dict[str, str]:
    """A list names files next to the catalogue's, which go to sglang/srt; a mapping holds texts already."""
    given = entry["probes"]
    if isinstance(given, Mapping):
        return dict(given)
    texts = {}
    for name in [given] if isinstance(given, str) else given:
        path = f"{PROBE_DIRECTORY}/{name}"
        wrong = check_path(path) or ([] if "/" not in str(name) else [f"{name}: a plain file name is needed"])
        if not wrong and not (file.parent / name).is_file():
            wrong = [f"{name} is not next to {file.name}"]
        if wrong:
            raise BAD_ENTRY.error(
                f"patch {entry.get('name')} is not well formed",
                evidence=[f"probes: {one}" for one in wrong],
                next=f"correct the entry in {file}",
            )
        texts[path] = (file.parent / name).read_text(encoding="utf-8")
    return texts


def _texts_once(chosen: Sequence[Mapping[str, Any]], texts: Mapping[str, str]) -> list[dict[str, Any]]:
    """The first entry that names a probe holds its text, so that a module is not sent it twenty times."""
    sent: set[str] = set()
    made = []
    for one in chosen:
        probes = {path: None if path in sent else texts[path] for path in one.get("probes") or {}}
        sent |= set(probes)
        made.append({**one, "probes": probes} if probes else dict(one))
    return made
