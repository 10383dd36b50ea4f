"""Whether an install that people already have (``~/ml-env``, a source checkout) is as released. Only looked at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .. import git
from ..errors import ErrorKind
from ..files import sha256_of
from ..patch.store import FileRecord, PatchStore
from . import wheel_record
from .python import Installed

EDITED = ErrorKind(
    "existing-release-edited",
    "Files of the sglang that was named as existing are not as it was released: somebody's debug prints or fixes. A "
    "deployment is copied from it, so they would be served in every mode and nobody would know.",
)

_SHOWN = 10


def check_pristine(found: Installed, python: str) -> str:
    """What proves the tree: ``RECORD``, ``git``, or ``nothing`` (neither is there). Raises existing-release-edited.

    Files that Aerie itself patched there are known by its own manifest.
    """
    package = Path(found.package_dir)
    recorded = _recorded(found)
    if recorded is not None:
        changed = recorded
        kept = f"{python} -m pip install --force-reinstall --no-deps sglang=={found.version}"
        proof = "RECORD"
    else:
        tracked = _of_git(package)
        if tracked is None:
            return "nothing"
        changed, proof = tracked, "git"
        kept = f"git -C {package} stash"
    ours = PatchStore(package.parent).manifest.files
    foreign = [one for one in changed if not _is_ours(package.parent, one.partition(": ")[2], ours)]
    if foreign:
        more = [f"… and {len(foreign) - _SHOWN} more"] if len(foreign) > _SHOWN else []
        raise EDITED.error(
            f"{len(foreign)} files of {package} are not as sglang {found.version} was released",
            evidence=[*foreign[:_SHOWN], *more],
            next=f"{kept}   # or leave it alone and have Aerie install the release beside it: "
            "-e sglang_install_source=index. Edits that are to stay belong into the inventory as a patch",
        )
    return proof


def _recorded(found: Installed) -> list[str] | None:
    """Differences from RECORD; None for an install whose RECORD does not name the package (editable)."""
    site = Path(found.dist_info).parent
    path = Path(found.dist_info) / "RECORD"
    if not found.dist_info or not path.is_file() or Path(found.package_dir).parent != site:
        return None
    files = wheel_record.parse_record(path.read_text(encoding="utf-8"))
    own = [one for one in files if one.path.startswith("sglang/")]
    if not own:
        return None
    # pip and uv write RECORD last: what was touched after it is hashed
    since = path.stat().st_mtime_ns
    return sorted(str(one) for one in wheel_record.iter_differences(site, own, since))


def _of_git(package: Path) -> list[str] | None:
    """Tracked files that differ from what is checked out; None where git does not track the package.

    Git takes no lock on the index.
    """
    tracked = _git(package, "ls-files", "--error-unmatch", "__init__.py")
    status = _git(package, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=no", "--", ".")
    prefix = _git(package, "rev-parse", "--show-prefix")
    if tracked is None or status is None or prefix is None:
        return None
    # Paths are from the top of the checkout; here they begin at the package, as in RECORD.
    inside = prefix.strip()
    rows = [row for row in status.split("\0") if len(row) > 3]
    return sorted(
        f"{'missing' if 'D' in row[:2] else 'changed'}: {package.name}/{row[3:].removeprefix(inside)}"
        for row in rows
    )


def _git(place: Path, *words: str) -> str | None:
    out = git.output_of(place, "--no-optional-locks", "-c", "core.fsmonitor=false", *words)
    return None if out is None else out.decode("utf-8", "replace")


def _is_ours(site: Path, path: str, ours: Mapping[str, FileRecord]) -> bool:
    record = ours.get(path)
    target = site / path
    return record is not None and target.is_file() and sha256_of(target) == record.after
