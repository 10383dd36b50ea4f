"""Running other programs."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from .errors import HostsError


def run(command: Sequence[str], *, pass_fds: Sequence[int] = (), seconds: float = 30) -> str:
    """Run to the end and return what it printed. Raises HostsError with its own words when it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, pass_fds=pass_fds, check=False
        )
    except FileNotFoundError:
        raise HostsError(f"{command[0]} is not installed", next="hosts check") from None
    except subprocess.TimeoutExpired:
        raise HostsError(
            f"{command[0]} did not end within {seconds:.0f} s",
            evidence=[" ".join(command)],
            next="hosts check",
        ) from None
    if done.returncode != 0:
        raise HostsError(
            f"{command[0]} failed",
            evidence=[" ".join(command), *done.stderr.strip().splitlines()[-5:]],
            next="hosts check",
        )
    return done.stdout


def succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0
