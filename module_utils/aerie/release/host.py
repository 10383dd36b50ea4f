"""What a release needs of the host besides its environment: a user, a group, a few system packages."""

from __future__ import annotations

import grp
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any


def missing(user: str, group: str, packages: Sequence[str]) -> dict[str, Any]:
    """What the host lacks: ``user`` and ``group`` as booleans, ``packages`` as the names not installed."""
    return {
        "user": not _known(pwd.getpwnam, user),
        "group": not _known(grp.getgrnam, group),
        "packages": missing_packages(packages),
    }


def missing_packages(packages: Sequence[str]) -> list[str]:
    """The packages that dpkg does not have installed. On a host without dpkg: none, since their names are Debian's."""
    if not packages or shutil.which("dpkg-query") is None:
        return []
    words = ["dpkg-query", "--show", "--showformat", "${binary:Package} ${db:Status-Status}\n", *packages]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False).stdout
    installed = {
        line.split()[0].split(":")[0] for line in shown.splitlines() if line.split()[1:] == ["installed"]
    }
    return [name for name in packages if name.split(":")[0] not in installed]


def _known(look_up: Any, name: str) -> bool:
    if not name:
        return True
    try:
        look_up(name)
    except KeyError:
        return False
    return True
