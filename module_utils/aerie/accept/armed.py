"""A measurement that is started before its server: all is ready, it watches the start, and begins once that has fired
up.

Starting a module on a host takes a second or two. Begun only after /health has answered, that is time in which a new
server serves nobody; begun while the server loads, it takes the processor from it; before that it costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..instance import lease, lease_host
from ..instance.state import InstanceStore
from ..instance.waiting import Wait

PAUSE_S = 0.05
ASK_S = 1.0
# What is left for the answer of /health, whatever the start and the gates have taken.
LEAST_S = 30.0


@dataclass(frozen=True)
class Run:
    """The run that a measurement belongs to: its instance, where that is to listen, the token of its lease.

    started_file: the controller says by it that the server has been started, and touches it again while it watches.
    """

    store: InstanceStore
    host: str
    port: int
    token: str
    start_timeout: float
    started_file: Path

    def check(self) -> None:
        """Raise lease-lost once the run is over, or is taken for dead: nobody will start the server any more."""
        held = lease_host.read(self.store)
        clock = lease_host.clock_now()
        lease.check(held if held is None or held.left(clock) > 0 else None, self.token, clock)

    def await_server(self, say: Callable[[str], None]) -> tuple[int, Callable[[], object]]:
        """Wait until the server has been started and serves. Raises what became of it.

        Returns its main pid, and what to call before anything is said of it: it waits for the answer of /health.
        """
        self._await_start()
        until = time.monotonic() + self.start_timeout
        wait = Wait(self.store, self.host, self.port, "ready", renew=_Renewal(self))
        seen = wait.serving(self.start_timeout, say)

        def healthy() -> None:
            if not seen.done:
                left = max(LEAST_S, until - time.monotonic())
                wait.end(left, lambda text: say("waiting for the answer of /health"))

        return seen.pid, healthy

    def _await_start(self) -> None:
        asked = float("-inf")
        while not self.started_file.exists():
            if time.monotonic() - asked >= ASK_S:
                self.check()
                asked = time.monotonic()
            time.sleep(PAUSE_S)


class _Renewal:
    """Renews the lease of a run that still watches: one that was killed must not keep it."""

    def __init__(self, run: Run) -> None:
        self._run, self._seen = run, 0

    def __call__(self) -> None:
        try:
            touched = self._run.started_file.stat().st_mtime_ns
        except OSError:  # somebody has removed it: it is touched anew at the next look
            touched = self._seen
        if touched == self._seen:  # not by the clock, which may be set back
            self._run.check()
            return
        self._seen = touched
        lease_host.renew(self._run.store, self._run.token)
