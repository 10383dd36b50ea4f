"""One load at a time on a server: a run that was killed leaves its load behind, which goes on by itself for minutes.

Two at once would measure each other. A lock that the kernel gives back, whatever ends the holder, tells.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from ..errors import ErrorKind

LOAD_BUSY = ErrorKind(
    "load-busy",
    "Another measurement puts its load on this server: of a run that was killed, whose load goes on by itself, or of a "
    "person's. Two at once would measure each other.",
)

PLACE = Path("/run")


@contextlib.contextmanager
def only_load(
    url: str, timeout: float, say: Callable[[str], None], place: Path = PLACE, every: float = 1.0
) -> Iterator[None]:
    """Hold the server's lock, after an earlier load has ended. ``timeout``: seconds to wait for that.

    Without root there is no place for a lock, and nobody to share a server with.
    """
    if os.geteuid() != 0 and place == PLACE:
        yield
        return
    path = place / f"aerie-load-{urlsplit(url).port}.lock"
    deadline = time.monotonic() + timeout
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise LOAD_BUSY.error(
                        f"an earlier load on {url} did not end within {timeout:.0f} s",
                        evidence=[f"it holds {path}"],
                        next="lslocks names its process; it ends by itself, or with the server",
                    ) from error
            say("waiting for an earlier load on this server to end")
            time.sleep(every)
        yield
