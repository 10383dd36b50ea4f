"""Fetch SGLang's wheels and keep their Python files, one directory a release.

    python tests/releases/fetch.py [RELEASE ...]
    python tests/releases/fetch.py --add RELEASE ...    # also write them, with their hashes, into wheels.txt

`wheels.txt` names every release from the first with EAGLE-3 on, with the hash of its wheel. pip fetches what is
missing, with this machine's own configuration; of a wheel only `*.py` and the dist-info are kept, below
`.cache/releases/RELEASE`, which appears there whole or not at all. Releases are fetched for x86_64 and Python 3.11
whatever runs this: the Python files are the same everywhere.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "cpu_engine"))

from pip_download import target_options

WHEELS = HERE / "wheels.txt"
CACHE = HERE.parents[1] / ".cache" / "releases"
TIMEOUT = 600.0  # seconds for one wheel
AT_ONCE = 3


class FetchError(Exception):
    """What pip said, and what to type next."""


def known() -> dict[str, str]:
    """Release to the sha256 of its wheel, oldest first."""
    found = re.findall(r"^sglang==(\S+) --hash=sha256:([0-9a-f]{64})$", WHEELS.read_text(), re.MULTILINE)
    return dict(found)


def published() -> list[str]:
    """Releases that this machine's pip offers now; empty when it cannot say."""
    command = [sys.executable, "-m", "pip", "index", "versions", "sglang", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--python-version", "3.11", "--platform", "manylinux_2_34_x86_64"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return []
    line = re.search(r"^Available versions: (.+)$", answer.stdout, re.MULTILINE)
    return line.group(1).split(", ") if line else []


def tree(release: str, cache: Path = CACHE) -> Path:
    """The release's directory, a site-packages of its own; fetched when it is not there yet."""
    directory = cache / release
    if not directory.is_dir():
        _fetch(release, known()[release], directory)
    return directory


def trees(releases: Iterable[str], cache: Path = CACHE) -> dict[str, Path]:
    """Several releases, a few downloads at a time."""
    wanted = list(releases)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(wanted, pool.map(lambda release: tree(release, cache), wanted), strict=True))


def _fetch(release: str, sha256: str | None, directory: Path) -> str:
    """Make the release's directory; the wheel's hash. sha256: what it has to be, None when that is not known yet."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{release}-", dir=directory.parent) as name:
        part = Path(name)
        requirement = part / "requirement.txt"
        requirement.write_text(f"sglang=={release}" + (f" --hash=sha256:{sha256}" if sha256 else "") + "\n")
        command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
        command += ["--quiet", "--dest", str(part), "-r", str(requirement), *target_options("x86_64")]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT, check=False
        )
        if done.returncode != 0:
            raise FetchError(f"sglang=={release}: pip download ended with {done.returncode}\n{done.stdout}")
        (wheel,) = part.glob("*.whl")
        unpack(wheel, part / "tree")
        shutil.rmtree(directory, ignore_errors=True)
        (part / "tree").rename(directory)
        return hashlib.sha256(wheel.read_bytes()).hexdigest()


def add(releases: Iterable[str]) -> None:
    """Append releases to wheels.txt, oldest first, as given."""
    for release in releases:
        sha256 = _fetch(release, None, CACHE / release)
        with WHEELS.open("a") as stream:
            stream.write(f"sglang=={release} --hash=sha256:{sha256}\n")


def unpack(wheel: Path, directory: Path) -> None:
    """The Python files of `sglang` and the dist-info, nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            top = member.filename.split("/", 1)[0]
            if top.endswith(".dist-info") or (top == "sglang" and member.filename.endswith(".py")):
                archive.extract(member, directory)


def main() -> int:
    """Fetch the named releases, or all of them."""
    releases = sys.argv[1:]
    try:
        if releases[:1] == ["--add"]:
            add(releases[1:])
            return 0
        releases = releases or list(known())
        unknown = [release for release in releases if release not in known()]
        if unknown:
            print(f"not in {WHEELS}: {', '.join(unknown)}", file=sys.stderr)
            return 2
        missing = [release for release in releases if not (CACHE / release).is_dir()]
        trees(missing)
    except (FetchError, subprocess.TimeoutExpired) as failure:
        print(f"fetch: {failure}\nnext: pip download --no-deps six, then run this again", file=sys.stderr)
        return 1
    print(f"{len(releases)} releases in {CACHE}, {len(missing)} fetched")
    return 0


if __name__ == "__main__":
    sys.exit(main())
