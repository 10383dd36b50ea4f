"""The API keys of a deployment: what SGLang can take as one, and the one that lies in a deployment.

A key lies in the deployment's ``config.yaml``, which is JSON that Aerie wrote.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import ErrorKind
from ..files import read_json

KEY_MISSING = ErrorKind(
    "api-key-missing", "A server that asks for an API key was to be asked, but its deployment holds none."
)

BAD_KEY = ErrorKind(
    "bad-api-key",
    "An API key that SGLang cannot take. It reads its configuration file into command-line words "
    "(server_args_config_parser.py, 0.5.3 to 0.5.23), so a key that begins with - is taken for a flag and the server "
    "ends at once; and a key travels in an HTTP header, so it is made of visible ASCII.",
)


def check_key(name: str, value: str) -> None:
    """Raise bad-api-key for a key that SGLang or an HTTP client cannot take. ``name`` is what the person set.

    The key itself is never part of the error.
    """
    if value.startswith("-"):
        wrong = "begins with -, and SGLang takes it for a flag"
    elif not all("!" <= letter <= "~" for letter in value):
        wrong = "holds a blank, a line break or a letter outside ASCII"
    else:
        return
    raise BAD_KEY.error(
        f"{name} {wrong}",
        next="make another one: lookup('ansible.builtin.password', FILE, chars=['ascii_letters', 'digits'], length=40)",
    )


def server_key(path: Path) -> str:
    """A key that the server takes, '' when it has none. Never part of a result."""
    given = read_json(path)
    keys = given if isinstance(given, dict) else {}
    return str(keys.get("api-key") or keys.get("admin-api-key") or "")


def admin_key(given: str | None, file: str | None) -> str | None:
    """The key for an administrator's endpoints (/flush_cache, /start_profile); the other one where there is none.

    Where a server has both, neither opens the other's endpoints (utils/auth.py of 0.5.23).
    """
    if given or not file:
        return given or None
    found = read_json(Path(file))
    return str((found if isinstance(found, dict) else {}).get("admin-api-key") or "") or client_key(
        None, file
    )


def client_key(given: str | None, file: str | None) -> str | None:
    """The key for a server: ``given``, else the one in the deployment's file; None for a server without one.

    Raises api-key-missing when a file is named that holds none: without a key every answer would be a mute HTTP 401.
    """
    if given or not file:
        return given or None
    found = server_key(Path(file))
    if not found:
        raise KEY_MISSING.error(
            f"{file} holds no API key" if Path(file).is_file() else f"there is no {file}",
            next=f"ls -l {Path(file).parent}; when that directory is gone, the next run builds it anew",
        )
    return found
