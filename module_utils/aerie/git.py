"""Git in somebody's checkout: as its owner, since its configuration can name commands, and root must not run them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def output_of(place: Path, *words: str, said: bytes = b"", timeout: float = 120.0) -> bytes | None:
    """What ``git WORDS`` prints in that directory, given ``said``; None when it fails or there is none."""
    try:
        owner = place.stat()
        switch = os.geteuid() == 0 and owner.st_uid != 0
        done = subprocess.run(
            ["git", *words],
            cwd=place,
            input=said,
            capture_output=True,
            timeout=timeout,
            check=False,
            user=owner.st_uid if switch else None,
            group=owner.st_gid if switch else None,
            extra_groups=[] if switch else None,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
