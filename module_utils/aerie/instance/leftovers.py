"""What a server leaves in ``/dev/shm`` when it ends: SIGKILL and, in every release, one file each stop.

Families by release: ``sglang.srt.utils.stale_shm_cleanup`` (0.5.18 and later, where it runs in SGLang's own CI only).
systemd's ``RemoveIPC=yes`` removes them too, but not while another instance of the same user runs.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..processes import PROC

SHM = Path("/dev/shm")
# Names that hold their maker's pid: sgl_shm_<kind>_<pid>_<random>, multi_tokenizer_args_<pid>, torch_<pid>_<random>_<n>
_WITH_PID = re.compile(r"(?:sgl_shm_\w+_(\d+)_[0-9a-f]+|multi_tokenizer_args_(\d+)|torch_(\d+)_\d+_\d+)")
_WITHOUT_PID = ("sglang_loads_", "cuda.shm.", "nccl-", "sem.loky-")


def maker_of(name: str) -> int | None:
    """The pid that a name holds; None for one that holds none."""
    match = _WITH_PID.fullmatch(name)
    return int(next(filter(None, match.groups()))) if match else None


def is_known(name: str) -> bool:
    """Whether a file of this name can be SGLang's, or of what it calls. Nothing else is ever removed."""
    return maker_of(name) is not None or name.startswith(_WITHOUT_PID)


def stale(user: str, place: Path = SHM, proc: Path = PROC) -> list[Path]:
    """Files of the service user that no living process made, maps or has open."""
    try:
        uid = pwd.getpwnam(user).pw_uid
        found = [one for one in place.iterdir() if is_known(one.name) and one.lstat().st_uid == uid]
    except (KeyError, OSError):
        return []
    gone = [one for one in found if not _alive(maker_of(one.name), proc)]
    used = _used(gone, proc) if gone else set()
    return sorted(one for one in gone if one not in used)


def _alive(pid: int | None, proc: Path) -> bool:
    return pid is not None and (proc / str(pid)).exists()


def _used(paths: Iterable[Path], proc: Path) -> set[Path]:
    names = {str(path): path for path in paths}
    used: set[Path] = set()
    for folder in (one for one in proc.iterdir() if one.name.isdigit()):
        with suppress(OSError):
            maps = (folder / "maps").read_text(errors="replace")
            used |= {path for name, path in names.items() if name in maps}
        with suppress(OSError):
            for link in (folder / "fd").iterdir():
                with suppress(OSError):
                    target = str(link.readlink())
                    if target in names:
                        used.add(names[target])
    return used
