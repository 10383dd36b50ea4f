"""Variables that every server process on a host must carry (``gpu_host_required_env``).

They stand in the unit's environment; an ExecStartPre= refuses to start without them; and they are read back from the
living process. A value of None means: set to anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import ErrorKind
from ..instance.unit import exec_line
from .facts import CAUTION, PROBLEM, Finding, UnitEnvironment

CONFLICT = ErrorKind(
    "gpu-host-env-conflict",
    "An instance sets a variable to another value than this host requires (gpu_host_required_env).",
)
MISSING = ErrorKind(
    "gpu-host-env-missing",
    "A server on this host lacks a variable that this host requires, or has it with another value. Before a deployment"
    " it is only said, since the deployment sets it; afterwards it is a problem.",
)
# EX_CONFIG of sysexits.h: the unit's journal shows it as 78/CONFIG.
_EXIT = 78
_SCRIPT = (
    'if [ "$#" -eq 2 ]; then [ "$(printenv "$1")" = "$2" ] && exit 0;'
    ' elif printenv "$1" >/dev/null; then exit 0; fi;'
    " printf 'This host requires the variable %s (gpu_host_required_env) and the unit does not set it.\\n'"
    ' "$1${2+=$2}" >&2;'
    f" exit {_EXIT}"
)


def start_checks(required: Mapping[str, str | None]) -> str:
    """``ExecStartPre=`` lines for the unit, one a variable; empty without required variables."""
    lines = []
    for name in sorted(required):
        value = required[name]
        words = ["/bin/sh", "-c", _SCRIPT, "required-env", name, *([] if value is None else [value])]
        lines.append(f"ExecStartPre={exec_line(words)}")
    return "\n".join(lines)


def merged(
    defaults: Mapping[str, str], instance: Mapping[str, str], required: Mapping[str, str | None]
) -> dict[str, str]:
    """A server's environment: the host's defaults, under the instance's own, under what the host requires.

    Raises gpu-host-env-conflict when the instance sets a required variable to another value.
    """
    check_conflict(instance, required)
    fixed = {name: value for name, value in required.items() if value is not None}
    return {**defaults, **instance, **fixed}


def check_conflict(instance: Mapping[str, str], required: Mapping[str, str | None]) -> None:
    """Raise gpu-host-env-conflict."""
    wrong = [
        f"{name}: the instance says {instance[name]!r}, the host requires {value!r}"
        for name, value in sorted(required.items())
        if value is not None and name in instance and instance[name] != value
    ]
    if wrong:
        raise CONFLICT.error(
            "The instance's environment contradicts what this host requires",
            evidence=wrong,
            next="remove these variables from sglang_server_environment, or correct gpu_host_required_env",
        )


def check_units(
    required: Mapping[str, str | None], units: Sequence[UnitEnvironment], *, verify: bool
) -> list[Finding]:
    """The units and their living processes carry the required variables. verify: a problem, else a caution."""
    lines = []
    for unit in units:
        lines += [f"{unit.unit}: {line}" for line in lacking(required, unit.environment)]
        if unit.process is not None:
            lines += [f"{unit.unit}, pid {unit.pid}: {line}" for line in lacking(required, unit.process)]
    if not lines:
        return []
    return [
        Finding(
            MISSING.error(
                "Servers on this host lack variables that it requires",
                evidence=lines,
                next="run production.yml for these instances; systemctl show UNIT -p Environment",
            ),
            PROBLEM if verify else CAUTION,
        )
    ]


def lacking(required: Mapping[str, str | None], environment: Mapping[str, str]) -> list[str]:
    """How an environment falls short of what the host requires, a line a variable."""
    found = []
    for name, value in sorted(required.items()):
        if name not in environment:
            found.append(f"{name} is not set")
        elif value is not None and environment[name] != value:
            found.append(f"{name} is {environment[name]!r}, {value!r} is required")
    return found
