"""What a file was before anybody touched it, and what proves that.

The wheel's ``RECORD`` proves a file by its hash. A source checkout or an editable install has none, so the commit that
is checked out proves it (``git``), and without git the first sight of it does (``first seen``). A file that is neither
pristine nor what Aerie made of it is somebody else's work and is never overwritten.
"""

from __future__ import annotations

import base64
import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

from .. import git
from ..errors import AerieError, ErrorKind
from ..release.wheel_record import parse_record
from .site import dist_info_of
from .store import PatchStore, sha256

FOREIGN = ErrorKind(
    "foreign-change",
    "A file that a source patch is for, or was for, is neither as SGLang was released nor as Aerie left it. Somebody "
    "else changed it, so it is not overwritten.",
)
PRISTINE_LOST = ErrorKind(
    "pristine-copy-lost",
    "A patched file cannot be put back: the copy of what it was is not beside it any more, or is not what it was.",
)

RECORD, GIT, FIRST_SEEN = "RECORD", "git", "first seen"
DIFF_LINES = 40
# Where a host may have another copy of the same release, to show what was changed.
ELSEWHERE = ("/opt/sglang/venvs/*/lib/python3*/site-packages",)
BACKUPS = (".orig", ".bak", ".backup", ".old", "~")


class Pristine:
    """Tells the pristine bytes of the files of one tree. ``proof`` is the kind of proof that the tree has."""

    def __init__(self, site: Path, store: PatchStore, paths: Iterable[str]) -> None:
        self.site = site
        self.store = store
        names = list(paths)
        self._hashes = recorded_hashes(site, names)
        self._blobs = git_blobs(site, names) if self._hashes is None else None
        proven = GIT if self._blobs is not None else FIRST_SEEN
        self.proof = RECORD if self._hashes is not None else proven

    def of(self, path: str, current: bytes | None) -> bytes | None:
        """The pristine bytes, None when the release has no such file. Raises foreign-change, pristine-copy-lost."""
        if self._hashes is not None:
            return self._proven(path, current, self._hashes.get(path, ""))
        if self._blobs is not None:
            blob = self._blobs.get(path)
            if current is not None and blob is not None and current.replace(b"\r\n", b"\n") == blob:
                return current  # checked out with other newlines
            return self._proven(path, current, sha256(blob), blob)
        return self._first_seen(path, current)

    def _proven(
        self, path: str, current: bytes | None, wanted: str, blob: bytes | None = None
    ) -> bytes | None:
        """wanted: the pristine sha256, empty when there was no such file."""
        if sha256(current) == wanted:
            return current
        known = blob if blob is not None else self.store.kept(wanted)
        if sha256(current) not in self.store.ours(path):
            raise self._foreign(path, current, wanted, known)
        return None if not wanted else self._or_lost(path, known)

    def _first_seen(self, path: str, current: bytes | None) -> bytes | None:
        record = self.store.record(path)
        if record is None or sha256(current) in self.store.known_before(path):
            return current
        kept = self.store.kept(record.before)
        if sha256(current) not in self.store.ours(path):
            raise self._foreign(path, current, record.before, kept)
        return None if not record.before else self._or_lost(path, kept)

    def _or_lost(self, path: str, data: bytes | None) -> bytes:
        if data is None:
            raise PRISTINE_LOST.error(
                f"{self.site / path} is patched and its pristine copy is gone",
                evidence=[f"no valid copy in {self.store.root / 'pristine'}"],
                next="install this release of sglang again",
            )
        return data

    def _foreign(self, path: str, current: bytes | None, wanted: str, known: bytes | None) -> AerieError:
        target = self.site / path
        if current is None:
            return FOREIGN.error(
                f"{target} is gone",
                evidence=[f"proof: {self.proof}"],
                next="put it back, or install this release of sglang again",
            )
        if not wanted:
            return FOREIGN.error(
                f"{target} is there, and {self.proof} does not know it",
                evidence=current.decode("utf-8", "replace").splitlines()[:5],
                next=f"see what it is for; if nothing needs it: rm {target}",
            )
        before = known if known is not None else find_copy(self.site, path, wanted)
        if before is None:
            evidence = [f"proof: {self.proof}", "no copy of the pristine file was found to compare it with"]
        else:
            evidence = unified(path, before, current, "pristine", "found")
            if len(evidence) > DIFF_LINES:
                evidence = [*evidence[:DIFF_LINES], f"… and {len(evidence) - DIFF_LINES} more lines"]
        restore = (
            f"cd {self.site} && git checkout -- {path}"
            if self.proof == GIT
            else "keep your change as a unified diff among the patches, and install this release of sglang again"
        )
        return FOREIGN.error(
            f"{target} was changed by somebody else", evidence=evidence, next=f"to do without it: {restore}"
        )


def recorded_hashes(site: Path, paths: Iterable[str]) -> dict[str, str] | None:
    """``{path: hex sha256}`` of those of the files that the wheel's RECORD has; None when it proves none of sglang.

    Thousands of lines for a few paths, none of which needs quotes, so they are not read as CSV.
    """
    dist_info = dist_info_of(site)
    record = dist_info / "RECORD" if dist_info else None
    if record is None or not record.is_file():
        return None
    lines = [line for line in record.read_text(encoding="utf-8").splitlines() if line.startswith("sglang/")]
    if not any(",sha256=" in line for line in lines):
        return None
    wanted = set(paths)
    found = {}
    for file in parse_record("\n".join(line for line in lines if line.partition(",")[0] in wanted)):
        if file.sha256:
            padded = file.sha256 + "=" * (-len(file.sha256) % 4)
            found[file.path] = base64.urlsafe_b64decode(padded).hex()
    return found


def git_blobs(site: Path, paths: Sequence[str]) -> dict[str, bytes | None] | None:
    """What the commit that is checked out holds of the files (None: not in it); None when git does not track sglang."""
    names = ["sglang/__init__.py", *paths]
    asked = "".join(f"HEAD:./{name}\n" for name in names).encode()
    place = (site / "sglang").resolve().parent
    out = git.output_of(place, "-c", "protocol.allow=never", "cat-file", "--batch", said=asked, timeout=60)
    if out is None:
        return None
    blobs: dict[str, bytes | None] = {}
    at = 0
    for name in names:
        end = out.find(b"\n", at)
        words = out[at:end].split()
        at = end + 1
        if len(words) == 3 and words[1] == b"blob":
            size = int(words[2])
            blobs[name] = out[at : at + size]
            at += size + 1
        else:
            blobs[name] = None
    return blobs if blobs[names[0]] is not None else None


def find_copy(site: Path, path: str, wanted: str) -> bytes | None:
    """A pristine copy of a file on this host: a backup beside it, or another environment of the same release."""
    target = site / path
    places = [target.with_name(target.name + ending) for ending in BACKUPS]
    for pattern in ELSEWHERE:
        places += [place / path for place in sorted(Path("/").glob(pattern.lstrip("/")))]
    for place in places:
        try:
            data = place.read_bytes()
        except OSError:
            continue
        if sha256(data) == wanted:
            return data
    return None


def unified(path: str, before: bytes | None, after: bytes | None, old: str, new: str) -> list[str]:
    """A unified diff of two contents, a line each, without newlines. Names: ``path (old)``, ``path (new)``."""
    was, now = ((data or b"").decode("utf-8", "replace").splitlines() for data in (before, after))
    return list(difflib.unified_diff(was, now, f"{path} ({old})", f"{path} ({new})", lineterm=""))
