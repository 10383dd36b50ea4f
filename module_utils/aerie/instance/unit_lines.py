"""Which lines of a unit a running server is touched by, and which systemd needs only to start, watch or stop it. Pure.

systemd takes the second kind in by ``daemon-reload`` and leaves the process alone, so a change of them needs no restart
and is no part of a spec's digest. What is not known to be of that kind counts as the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# How long a start or stop may take, by which signals a server is stopped, whether it is started again afterwards, and
# what is said about it. Not here although they matter only then: Exec…= (the ports' rules are made and removed by
# them), RuntimeMaxSec= and WatchdogSec= (both end a server that runs), and limits, which a reload applies at once.
WITHOUT_RESTART = frozenset(
    {
        "Description", "Documentation",
        "Restart", "RestartForceExitStatus", "RestartMaxDelaySec", "RestartMode", "RestartPreventExitStatus",
        "RestartSec", "RestartSteps", "StartLimitBurst", "StartLimitIntervalSec", "SuccessExitStatus",
        "TimeoutAbortSec", "TimeoutSec", "TimeoutStartFailureMode", "TimeoutStartSec", "TimeoutStopFailureMode",
        "TimeoutStopSec",
        "FinalKillSignal", "KillMode", "KillSignal", "RestartKillSignal", "SendSIGHUP", "SendSIGKILL",
    }
)  # fmt: skip
STOP = "TimeoutStopSec"


def essential(text: str) -> str:
    """The unit without comments, empty lines and what a running server is not touched by."""
    return "\n".join(line for line in _lines(text) if line.partition("=")[0].strip() not in WITHOUT_RESTART)


def with_stop_timeout(text: str, seconds: int) -> str:
    """The unit with another time for its stop. Where a person added a second line for it, the text as it is."""
    new, count = re.subn(rf"^{STOP}=.*$", f"{STOP}={seconds}", text, flags=re.MULTILINE)
    return new if count == 1 else text


def _lines(text: str) -> Iterator[str]:
    """Whole lines: those that end in a backslash with the ones that go on."""
    whole = ""
    for line in text.splitlines():
        if not whole and (not line.strip() or line.lstrip().startswith(("#", ";"))):
            continue
        whole += line
        if line.endswith("\\"):
            whole += "\n"
            continue
        yield whole
        whole = ""
    if whole:
        yield whole
