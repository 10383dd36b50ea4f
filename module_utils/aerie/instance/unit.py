"""The systemd unit of an instance: quoting, and the placeholders that the role's template leaves open.

systemd reads ``%`` as a specifier, ``$`` as a variable and backslashes and quotes as C does; a value must reach the
process unchanged whatever it holds (systemd.syntax(7), systemd.exec(5), systemd.service(5)).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..errors import ErrorKind
from .spec import DEPLOYMENT

BAD_ENVIRONMENT = ErrorKind(
    "bad-environment",
    "A variable for the server's environment cannot be set: its name is not a variable name, its value holds a NUL, "
    "or Aerie itself sets it and needs it as it is.",
)
BAD_UNIT = ErrorKind(
    "bad-unit-template", "The unit template lacks a placeholder that Aerie fills in, or has an unknown one."
)

PLACEHOLDERS = ("@COMMAND@", "@ENVIRONMENT@", "@EXIT_STATUS@")
# What the process imports and which card "0" means must not be the inventory's choice.
RESERVED_ENVIRONMENT = {
    "PYTHONPATH": "the deployment's own tree comes first on the import path",
    "PYTHONSAFEPATH": "the working directory must not be on the import path",
    "CUDA_DEVICE_ORDER": "SGLang and NVML must mean the same card by the same number",
    "SGLANG_LOGGING_CONFIG_PATH": "it keeps API keys out of the journal",
    "EAGLE3_DEBUG": "the mode debug does",
    "EAGLE3_DEBUG_DIR": "Aerie reads the probes' events there",
    "AERIE_PROFILE_DIR": "Aerie reads the timers' events there",
}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def quoted(word: str) -> str:
    """One word for ExecStart= or Environment=, in double quotes, with specifiers disarmed.

    ``$`` is left alone: see :func:`exec_word`.
    """
    if "\0" in word:
        raise BAD_ENVIRONMENT.error("a value holds a NUL character", next="remove it from the inventory")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    escaped = escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    escaped = re.sub(r"[\x01-\x1f\x7f]", lambda m: f"\\x{ord(m.group()):02x}", escaped)
    return f'"{escaped}"'


def exec_word(word: str) -> str:
    """One word of a command line: as :func:`quoted`, and ``$`` doubled, since ExecStart= expands variables."""
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./-]+", word):
        return word.replace("%", "%%")
    return quoted(word).replace("$", "$$")


def exec_line(words: Sequence[str]) -> str:
    """A command line, one flag with its values a line, so that people can read a diff of it."""
    lines: list[str] = []
    for word in words:
        if not lines or word.startswith("--"):
            lines.append(exec_word(word))
        else:
            lines[-1] += " " + exec_word(word)
    return " \\\n    ".join(lines)


def environment_lines(environment: Mapping[str, str]) -> str:
    """``Environment=`` lines, sorted by name."""
    for name in environment:
        if not _NAME.match(name):
            raise BAD_ENVIRONMENT.error(
                f"{name!r} is not a variable name", next="correct sglang_server_environment"
            )
    return "\n".join(f"Environment={quoted(f'{name}={environment[name]}')}" for name in sorted(environment))


def check_user_environment(environment: Mapping[str, object]) -> None:
    """Raise bad-environment when the inventory sets a variable that Aerie reserves."""
    for name in environment:
        if not isinstance(name, str) or not _NAME.match(name):
            raise BAD_ENVIRONMENT.error(
                f"{name!r} is not a variable name", next="correct sglang_server_environment"
            )
        if name in RESERVED_ENVIRONMENT:
            raise BAD_ENVIRONMENT.error(
                f"sglang_server_environment sets {name}, which Aerie sets itself: {RESERVED_ENVIRONMENT[name]}",
                next=f"remove {name} from sglang_server_environment",
            )


def render(
    template: str, *, command: Sequence[str], environment: Mapping[str, str], success_signals: Sequence[str]
) -> str:
    """Fill the template's placeholders.

    success_signals: signals that end a clean stop of this release and so are no failure (``SIGKILL`` for some).
    Raises bad-unit-template when a placeholder is missing or unknown.
    """
    found = set(re.findall(r"@[A-Z_]+@", template)) - {DEPLOYMENT}
    if found != set(PLACEHOLDERS):
        wrong = sorted(found ^ set(PLACEHOLDERS))
        raise BAD_UNIT.error(
            f"the unit template's placeholders are wrong: {', '.join(wrong)}",
            next="compare it with the role's templates/sglang.service.j2",
        )
    status = f"SuccessExitStatus={' '.join(success_signals)}" if success_signals else ""
    text = template.replace("@EXIT_STATUS@\n", status + "\n" if status else "")
    text = text.replace("@ENVIRONMENT@", environment_lines(environment))
    # Last, and not by regular expression: the command line may hold anything.
    return text.replace("@COMMAND@", exec_line(command))
