"""Waiting until an instance is ready or stopped: looks at it, and between them only what costs its host nothing.

A look starts systemctl and journalctl and walks /proc, and a server that starts needs its processor. So while it loads
it is looked at every few seconds, to say how far it is and whether its unit still lives. In between its main process is
looked for and /health is asked ten times a second, which is refused at once as long as nobody listens; who answered,
the next look has to say.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from .. import health, processes, systemd
from ..errors import AerieError
from . import reality, startup
from .state import InstanceStore

# Pause between two looks at a server that stops, and the longest between two at one that loads.
PAUSE_S = 0.3
LOOK_S = 3.0
HEALTH_PAUSE_S = 0.1
HEALTH_TIMEOUT_S = 8.0
LATE = ("scheduler ready", "HTTP is up, warming up", "fired up")
# What is new is told no sooner: an answer ends the call, and until the next one nobody looks.
TELL_S = 3.0


@dataclass(frozen=True)
class Seen:
    """One look. ``done``: nothing to wait for any more; ``error``: why it can never be reached; ``text``: how far it
    is, for a person; ``unit``: systemd's words for it; ``pid``: its main process (0: none)."""

    done: bool
    text: str
    unit: str
    pid: int
    error: AerieError | None = None

    @property
    def over(self) -> bool:
        return self.done or self.error is not None


class Wait:
    """Looks at one instance, each going on where the last one ended.

    until: ``ready`` or ``stopped``. renew: called at each look, raises when the run that waits has lost its lease.
    cursor, phase: of the last look of an earlier wait.
    """

    def __init__(
        self,
        store: InstanceStore,
        host: str,
        port: int,
        until: str,
        *,
        renew: Callable[[], None],
        cursor: str = "",
        phase: str = "",
    ) -> None:
        self.store, self.host, self.port, self.until = store, host, port, until
        self.cursor, self.phase = cursor, phase
        self._renew = renew

    @property
    def late(self) -> bool:
        """A start that is over in a moment."""
        return self.until == "ready" and self.phase in LATE

    def look(self, *, answered: bool = False) -> Seen:
        """One look. answered: /health said 200 just now."""
        self._renew()
        ready = self.until == "ready"
        ask = ready and not answered
        seen = reality.look(self.store, self.host, self.port, ask_health=ask, timeout=HEALTH_TIMEOUT_S)
        if answered and seen.owns_port:
            seen = replace(seen, health="ok")
        unit = seen.unit
        part = systemd.journal(self.store.unit_name, invocation=unit.invocation, after=self.cursor)
        self.cursor = part.cursor
        if ready:
            self.phase = startup.phase_of(part.lines, self.phase)
            tail = systemd.journal(self.store.unit_name, last=25).lines if startup.ended(unit) else []
            verdict = startup.judge_start(seen, tail, self.phase, strangers(seen))
        else:
            verdict = startup.judge_stop(seen, still_to_do(self.store, seen, self.host, self.port))
            self.phase = verdict.text
        return Seen(verdict.done, verdict.text, f"{unit.active}/{unit.sub}", unit.main_pid, verdict.error)

    def hold(self, seconds: float, told: str) -> Seen:
        """Look until it is over, for ``seconds``, or for TELL_S when there is something else to tell than ``told``."""
        began = time.monotonic()
        seen = self.look()
        while not seen.over:
            news = not self.late and seen.text != told
            if time.monotonic() - began >= (min(TELL_S, seconds) if news else seconds):
                break
            seen = self.look(answered=self._pause(seen))
        return seen

    def end(self, limit_s: float, say: Callable[[str], None]) -> Seen:
        """Look until it is over, and say what is new. Raises the error of a start that fails or takes too long."""
        began = time.monotonic()
        told = ""
        seen = self.look()
        while not seen.over:
            if time.monotonic() - began >= limit_s:
                raise too_late(self, seen, limit_s)
            if seen.text != told:
                say(seen.text)
                told = seen.text
            seen = self.look(answered=self._pause(seen))
        if seen.error is not None:
            raise seen.error
        return seen

    def _pause(self, seen: Seen) -> bool:
        """Wait a while between two looks; whether /health has answered 200 meanwhile."""
        if self.until == "stopped":
            time.sleep(PAUSE_S)
            return False
        until = time.monotonic() + LOOK_S
        while time.monotonic() < until:
            time.sleep(HEALTH_PAUSE_S)
            if health.get(self.host, self.port, "/health", timeout=HEALTH_TIMEOUT_S).ok:
                return True
            if seen.pid and processes.read_process(seen.pid) is None:
                break
        return False


def too_late(wait: Wait, seen: Seen, waited_s: float) -> AerieError:
    """The error of a wait whose time is over."""
    unit = wait.store.unit_name
    what = f"{unit} is not {wait.until} after {waited_s:.0f} s"
    evidence = [f"unit {seen.unit}, pid {seen.pid}, last seen: {seen.text}"]
    log = f"journalctl -u {unit} -b -e"
    if wait.until == "stopped":
        return startup.STOP_TIMEOUT.error(what, evidence=evidence, next=log)
    slow = f"{log}   # a slow disk may need a larger sglang_server_start_timeout"
    return startup.START_TIMEOUT.error(what, evidence=evidence, next=slow)


# What is imported is compiled anew at each call on the host, and a server that starts needs its processor.


def strangers(seen: reality.Reality) -> list[str]:
    """Who holds the port without being of the unit, a line each."""
    if not seen.strangers:
        return []
    from ..strangers import holders

    return holders.lines(seen.listener, seen.members)


def still_to_do(store: InstanceStore, seen: reality.Reality, host: str, port: int) -> str:
    """What a server that drains has left, where it can be asked; else ''."""
    spec = store.spec(seen.running) if seen.owns_port else None
    if not spec:
        return ""
    from . import drain
    from .overview import api_key

    return str(drain.load_of(spec, host, port, api_key(store, seen.running)))
