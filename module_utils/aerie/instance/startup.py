"""Watching a server start or stop: what an observation means, and where in its start a server is.

The phases are SGLang's own log lines, as seen with 0.5.16 to 0.5.23 (sglang-facts §11); a release that words one
differently only loses that step of the display, never the decision, which rests on unit, listener and /health.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import AerieError, ErrorKind
from ..systemd import UnitState
from .reality import Reality

START_FAILED = ErrorKind(
    "start-failed",
    "The server process ended, or systemd restarted it, before the server was ready. The journal's last lines say why.",
)
START_TIMEOUT = ErrorKind(
    "start-timeout",
    "The server did not become ready in sglang_server_start_timeout seconds. Its process still ran.",
)
STOP_TIMEOUT = ErrorKind(
    "stop-timeout", "The unit did not stop within its own time limit, after which systemd kills what is left."
)

UNIT_MASKED = ErrorKind(
    "unit-masked",
    "Somebody has masked the instance's unit, which keeps it from being started by anybody. Aerie does not undo that.",
)

PHASES: tuple[tuple[str, str], ...] = (
    (r"Init (parallel|torch distributed) begin", "setting up devices"),
    (r"Load weight begin", "loading weights"),
    (r"Load weight end", "weights loaded"),
    (r"KV Cache is allocated", "KV cache allocated"),
    (r"Memory pool end", "memory pool ready"),
    (r"Capture .*graph.* begin", "capturing CUDA graphs"),
    (r"Capture .*graph.* end", "CUDA graphs captured"),
    (r"max_total_num_tokens=", "scheduler ready"),
    (r"Uvicorn running", "HTTP is up, warming up"),
    (r"The server is fired up", "fired up"),
)
# What an operator can do about the failures that people meet most; (pattern in the journal, advice).
ADVICE: tuple[tuple[str, str], ...] = (
    (r"out of memory|OutOfMemoryError", "lower mem_fraction_static or the CUDA graph batch size (sglang #3430)"),
    (r"address already in use", "another process holds a port: ss -ltnp"),
    (r"is greater than the derived", "the draft's context is shorter: set context_length, or "
     "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 in sglang_server_environment"),
    (r"mat1 and mat2 shapes cannot be multiplied", "the draft's layer ids do not fit the target: check "
     "eagle_aux_hidden_state_layer_ids in the draft's config.json"),
    (r"unrecognized arguments|invalid choice|ambiguous option", "this release does not know an argument: correct "
     "sglang_server_arguments"),
    (r"SafetensorError|Cannot find any model weights", "a model file is missing or cut off: copy the model again"),
    (r"undefined symbol", "kernel, torch and driver do not fit together: install the locked release again"),
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """done: nothing to wait for any more; error: why it can never be reached; text: what to show meanwhile."""

    done: bool
    text: str
    error: AerieError | None = None


def phase_of(lines: Sequence[str], before: str = "") -> str:
    """The latest phase that the log lines name, or ``before``."""
    for line in reversed(lines):
        for pattern, label in reversed(PHASES):
            if re.search(pattern, line):
                return label
    return before


def advice_for(lines: Sequence[str]) -> str | None:
    """The advice for the first known failure in the lines."""
    for line in lines:
        for pattern, text in ADVICE:
            if re.search(pattern, line, re.IGNORECASE):
                return text
    return None


def ended(unit: UnitState) -> bool:
    """Whether a server that was to start has ended instead, or has been started again since."""
    leaving = unit.stopped or unit.active == "deactivating" or unit.sub.startswith("auto-restart")
    return leaving or unit.restarts > 0


# ExecMainCode= is waitid's si_code: 1 exited, 2 killed, 3 killed with a core dump.
def how(unit: UnitState) -> str:
    """How the main process ended: ``exit status 1``, ``killed by SIGKILL``; systemd's word where it has one more."""
    word = "" if unit.result in ("", "success", "exit-code", "signal", "core-dump") else f", {unit.result}"
    number = int(unit.exit_status) if unit.exit_status.isdigit() else None
    if number is None or unit.exit_code not in ("1", "2", "3"):
        return (unit.result or "ended") if word else "ended"
    if unit.exit_code == "1":
        return f"exit status {number}{word}"
    names = {one.value: one.name for one in signal.Signals}
    return f"killed by {names.get(number, f'signal {number}')}{word}"


def judge_start(seen: Reality, tail: Sequence[str], phase: str, strangers: Sequence[str] = ()) -> Verdict:
    """Is the server ready, on its way, or lost?

    tail: the last journal lines of this start. strangers: who holds the port without being of the unit, a line each.
    """
    unit = seen.unit
    if unit.load == "masked":
        return Verdict(False, "masked", _masked(unit.name))
    if ended(unit):
        return Verdict(
            False,
            "ended",
            START_FAILED.error(
                f"{unit.name} ended while it was starting ({how(unit)}); it last was: {phase or 'importing'}",
                evidence=list(tail)[-15:],
                next=advice_for(tail) or f"journalctl -u {unit.name} -b -e",
            ),
        )
    if seen.owns_port and seen.health == "ok":
        return Verdict(True, "ready")
    if seen.strangers:
        return Verdict(
            False,
            "port taken",
            START_FAILED.error(
                f"the port of {unit.name} is held by another process, so its server can never serve there",
                evidence=strangers or [f"holder: pid {pid}" for pid in seen.strangers],
                next="look at it: ss -ltnp; run again, and the plan says how it can be stopped; or give the instance "
                "another sglang_server_port",
            ),
        )
    return Verdict(False, phase or "importing")


def _masked(name: str) -> AerieError:
    return UNIT_MASKED.error(
        f"{name} is masked, so systemd refuses to start it",
        evidence=[f"systemctl show -p LoadState {name}: masked"],
        next=f"ask who masked it; systemctl unmask {name}, then run again",
    )


def check_unit(unit: UnitState) -> None:
    """Raise unit-masked for a unit that can never start, before the old server is asked to stop."""
    if unit.load == "masked":
        raise _masked(unit.name)


def judge_stop(seen: Reality, load: str = "") -> Verdict:
    """Is the unit stopped and its cgroup empty? load: ``3 requests``, what it still has to do, when that is known."""
    if seen.unit.stopped and not seen.members:
        # systemd's word for a unit that had to be killed when TimeoutStopSec= had passed
        killed = seen.unit.result == "timeout"
        return Verdict(True, "stopped, by SIGKILL after the time for draining" if killed else "stopped")
    if not seen.members:
        return Verdict(False, "stopping")
    left = f"{len(seen.members)} process{'' if len(seen.members) == 1 else 'es'} left"
    return Verdict(False, f"draining, {load}, {left}" if load else f"draining, {left}")
