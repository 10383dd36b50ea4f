"""A measurement that is started while its server still loads: all is ready, and it begins when it is told to.

Starting a module on a host takes a second or two. Begun only after /health has answered, that is time in which a new
server serves nobody; before that it costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..instance import lease, lease_host
from ..instance.state import InstanceStore

PAUSE_S = 0.05
ASK_S = 1.0


@dataclass(frozen=True)
class Run:
    """The run that a measurement belongs to: its instance and the token of its lease."""

    store: InstanceStore
    token: str

    def check(self) -> None:
        """Raise lease-lost once the run is over, or is taken for dead: nobody will say that the server is ready."""
        held = lease_host.read(self.store)
        clock = lease_host.clock_now()
        lease.check(held if held is None or held.left(clock) > 0 else None, self.token, clock)


def wait_for_server(ready_file: Path, check: Callable[[], None]) -> int:
    """Wait until ``ready_file`` holds the main pid of the server that is to be measured, and return it.

    check: asked once a second; raises when that will not happen any more.
    """
    asked = float("-inf")
    while True:
        try:
            return int(ready_file.read_text(encoding="ascii"))
        except FileNotFoundError:
            pass
        if time.monotonic() - asked >= ASK_S:
            check()
            asked = time.monotonic()
        time.sleep(PAUSE_S)
