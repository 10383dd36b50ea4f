"""What differs between SGLang releases and matters to a deployment. Each rule names its source."""

from __future__ import annotations

import re

_PART = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.?post(\d+))?(?:[.+-].*)?\Z")


def version_key(release: str) -> tuple[int, int, int, int]:
    """``0.5.10.post1`` -> ``(0, 5, 10, 1)``. Development versions sort as the release they lead to.

    Raises ValueError for text that is no release.
    """
    match = _PART.match(release) or re.match(r"(\d+)\.(\d+)\.(\d+)()", release)
    if match is None:
        raise ValueError(f"{release!r} is no SGLang release")
    major, minor, patch, post = match.groups()
    return int(major), int(minor), int(patch), int(post or 0)


def stop_signals(release: str) -> tuple[str, ...]:
    """Signals by which the launcher ends a clean stop.

    Up to 0.5.18 the launcher SIGKILLs itself at the end of a drained stop (read in the source up to 0.5.13,
    seen on the CPU engine with 0.5.16 to 0.5.18 and on a GPU with 0.5.17); from 0.5.19 on it exits 0.
    """
    return ("SIGKILL",) if version_key(release) < (0, 5, 19, 0) else ()


def server_info_path(release: str) -> str:
    """Where the server describes itself: ``/server_info`` is first seen in 0.5.6.post2."""
    return "/server_info" if version_key(release) >= (0, 5, 6, 2) else "/get_server_info"


def config_file_supported(release: str) -> bool:
    """``--config file.yaml`` is there from 0.5.3 on; Aerie passes API keys through it."""
    return version_key(release) >= (0, 5, 3, 0)


def rendezvous_port_supported(release: str) -> bool:
    """``--nccl-port`` is there from 0.4.10 on; before, SGLang picks the rendezvous port itself."""
    return version_key(release) >= (0, 4, 10, 0)
