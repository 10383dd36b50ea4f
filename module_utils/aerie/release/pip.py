"""pip as the installer: its command, what its output says about progress, what its failures mean. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import AerieError, ErrorKind
from .lockfile import normalised

HASH_MISMATCH = ErrorKind(
    "package-hash-mismatch",
    "A downloaded package is not the one that the lock names: it was changed on the way or replaced on the "
    "index, or a wheel was built or repacked after the lock was made. Nothing was installed.",
)
PACKAGE_MISSING = ErrorKind(
    "package-missing",
    "pip found no file for a locked package: the index or wheelhouse does not hold that version, or only for "
    "another Python or platform.",
)
INDEX_UNREACHABLE = ErrorKind(
    "index-unreachable",
    "pip could not reach the package index from the host. Usually a proxy or an index address is missing.",
)
INSTALL_FAILED = ErrorKind("install-failed", "pip ended with an error that Aerie has no better name for.")

# Shown on a failure: enough for pip's own explanation, which comes last.
EVIDENCE_LINES = 12


def command(
    python: str, target_python: str, lock: Path, *, wheelhouse: Path | None, find_links: Sequence[Path]
) -> list[str]:
    """The command that installs ``lock`` into the environment of ``target_python`` with ``python``'s pip.

    wheelhouse: the only source, then no index is asked; None: the index that pip is configured for.
    """
    words = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    if target_python != python:
        words += ["--python", target_python]
    words += ["install", "--require-hashes", "--no-deps", "--ignore-installed", "--no-compile"]
    words += ["--no-cache-dir", "--progress-bar", "off", "--requirement", str(lock)]
    if wheelhouse is not None:
        words += ["--no-index", "--find-links", str(wheelhouse)]
    for directory in find_links:
        words += ["--find-links", str(directory)]
    return words


def environment(given: Mapping[str, str], temporary: Path, *, isolated: bool) -> dict[str, str]:
    """pip's environment. isolated (wheelhouse): no configuration file and no PIP_ variable of the host counts."""
    base = dict(os.environ)
    for name in list(base):
        if name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV") or (isolated and name.startswith("PIP_")):
            del base[name]
    if isolated:
        base["PIP_CONFIG_FILE"] = os.devnull
    base.update({"PIP_ROOT_USER_ACTION": "ignore", "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"})
    return {**base, **given}


def redacted(text: str) -> str:
    """The text without user names and passwords in addresses."""
    return re.sub(r"(\w+://)[^/@\s]+@", r"\1****@", text)


class Progress:
    """Reads pip's output line by line and says where it stands.

    total: packages in the lock. ``feed`` returns a text when there is something new to say. Once ``order`` is
    filled, pip is silent until all is installed, and ``installed`` says how far it is from the dist-info
    directories that are complete.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.order: list[str] = []
        self._fetched = 0
        self._name = ""
        self._done = -1

    def feed(self, line: str) -> str | None:
        text = line.strip()
        if text.startswith("Collecting ") or (text.startswith("Processing ") and ".whl" in text):
            self._fetched += 1
            self._name = _package(text)
            return f"fetching {self._fetched}/{self.total} {self._name}"
        size = re.match(r"Downloading \S+ \((?P<size>[0-9.]+ [kMG]?B)\)", text)
        if size and size["size"].endswith(("MB", "GB")):
            return f"fetching {self._fetched}/{self.total} {self._name} ({size['size']})"
        if text.startswith("Installing collected packages: "):
            self.order = [name.strip() for name in text.split(": ", 1)[1].split(",")]
            return self.installed(set())
        return None

    def installed(self, names: set[str]) -> str | None:
        """What is being installed, given the normalised names of the distributions that are complete."""
        if not self.order:
            return None
        waiting = [name for name in self.order if normalised(name) not in names]
        done = len(self.order) - len(waiting)
        if done == self._done or not waiting:
            return None
        self._done = done
        return f"installing {done + 1}/{len(self.order)} {waiting[0]}"


def _package(line: str) -> str:
    """The package of a "Collecting torch==2.11.0 (from …)" or "Processing ./torch-2.11.0-….whl" line."""
    word = line.split()[1]
    if line.startswith("Processing "):
        return normalised(word.rsplit("/", 1)[-1].split("-")[0])
    return re.split(r"[=<>\[;@]", word)[0]


def complete(site_packages: Path) -> set[str]:
    """Normalised names of the distributions that pip has unpacked (it writes INSTALLER after their files)."""
    return {
        normalised(marker.parent.name.removesuffix(".dist-info").rsplit("-", 1)[0])
        for marker in site_packages.glob("*.dist-info/INSTALLER")
    }


def failure(output: Sequence[str], log: Path) -> AerieError:
    """The error that pip's output speaks of. ``log`` is where all of it is kept."""
    lines = [redacted(line.rstrip()) for line in output if line.strip() and "notice" not in line]
    text = "\n".join(lines)
    evidence = lines[-EVIDENCE_LINES:]
    keep = f"less {log}"
    if "DO NOT MATCH THE HASHES" in text:
        start = next(number for number, line in enumerate(lines) if "DO NOT MATCH THE HASHES" in line)
        return HASH_MISMATCH.error(
            "a package does not have the hash that the lock names",
            evidence=lines[start + 1 : start + 1 + EVIDENCE_LINES],
            next="find out which of the two changed; then compile the lock again or fetch the wheel again",
        )
    if re.search(
        r"NewConnectionError|Max retries exceeded|Temporary failure in name resolution|ProxyError", text
    ):
        return INDEX_UNREACHABLE.error(
            "pip could not reach the package index",
            evidence=evidence,
            next="set PIP_INDEX_URL and https_proxy in sglang_install_environment, or use a wheelhouse",
        )
    missing = re.findall(r"No matching distribution found for (\S+)", text)
    if missing:
        return PACKAGE_MISSING.error(
            f"no file fits {missing[0]} on this host",
            evidence=evidence,
            next=f"{keep}; put a fitting wheel there",
        )
    return INSTALL_FAILED.error("pip could not install the release", evidence=evidence, next=keep)
