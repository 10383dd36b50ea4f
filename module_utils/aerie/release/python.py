"""Ask a python on the host what it has, without importing sglang and without writing anything."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

from ..errors import ErrorKind

PYTHON_UNUSABLE = ErrorKind(
    "python-unusable",
    "The python that was named is not there, does not start, or does not have sglang installed.",
)
VENV_MISSING = ErrorKind(
    "venv-module-missing",
    "The host's python cannot make virtual environments: Debian and Ubuntu ship venv and ensurepip in a package "
    "of their own.",
)

# find_spec on a top-level name does not import it. A distribution's location has no public name;
# locate_file("") is where its files lie, which for an editable install is where the dist-info is, not where
# the package is.
_CODE = """
import json, sys
from importlib import metadata, util
answer = {"python_version": "%d.%d" % sys.version_info[:2], "version": "", "package_dir": "", "dist_info": ""}
try:
    distribution = metadata.distribution("sglang")
    answer["version"] = distribution.version
    answer["dist_info"] = str(getattr(distribution, "_path", "") or distribution.locate_file(""))
except metadata.PackageNotFoundError:
    pass
spec = util.find_spec("sglang")
if spec is not None:
    places = list(spec.submodule_search_locations or [])
    answer["package_dir"] = places[0] if places else ""
print(json.dumps(answer))
"""
_TIMEOUT_S = 60


@dataclass(frozen=True)
class Installed:
    """What a python has: python_version as ``3.12``; version, package_dir and dist_info are sglang's or empty."""

    python_version: str
    version: str
    package_dir: str
    dist_info: str


def inspect(python: str) -> Installed:
    """What ``python`` has. Isolated (-I): only its own site-packages counts. Without byte-code (-B)."""
    answer = _run([python, "-I", "-B", "-c", _CODE], python)
    try:
        data = json.loads(answer.splitlines()[-1])
        return Installed(data["python_version"], data["version"], data["package_dir"], data["dist_info"])
    except (IndexError, KeyError, ValueError) as error:
        raise PYTHON_UNUSABLE.error(
            f"{python} did not answer like a python",
            evidence=answer.splitlines()[-5:],
            next=f"{python} -c 'import sglang'",
        ) from error


def require_sglang(python: str) -> Installed:
    """Like inspect, but raises PYTHON_UNUSABLE when sglang is not installed there."""
    found = inspect(python)
    if not found.package_dir or not found.dist_info:
        raise PYTHON_UNUSABLE.error(
            f"{python} has no sglang",
            evidence=[f"package: {found.package_dir or 'none'}", f"dist-info: {found.dist_info or 'none'}"],
            next=f"{python} -m pip show sglang; name the python that runs your server",
        )
    return found


def pip_for(python: str) -> str:
    """Whose pip fills an environment made from ``python``.

    Empty: the environment's own, since ensurepip is there. Otherwise ``python`` itself, when it has a pip that can
    install into other environments (``--python``, pip 22.3). Raises VENV_MISSING when neither is there.
    """
    answer = _run([python, "-I", "-B", "-c", _VENV_CODE], python)
    try:
        data = json.loads(answer.splitlines()[-1])
        version, ensurepip, pip = str(data["version"]), bool(data["ensurepip"]), str(data["pip"])
    except (IndexError, KeyError, ValueError) as error:
        raise PYTHON_UNUSABLE.error(
            f"{python} did not answer like a python", evidence=[answer], next=f"{python} --version"
        ) from error
    if ensurepip:
        return ""
    if _at_least(pip, OLDEST_PIP):
        return python
    raise VENV_MISSING.error(
        f"{python} cannot make virtual environments with pip",
        evidence=["ensurepip: none", f"its own pip: {pip or 'none'} (22.3 or newer would do)"],
        next=f"apt-get install python{version}-venv (the role does it: sglang_install_packages)",
    )


OLDEST_PIP = (22, 3)
_VENV_CODE = """
import json, sys
from importlib import metadata, util
try:
    pip = metadata.version("pip") if util.find_spec("pip") else ""
except metadata.PackageNotFoundError:
    pip = ""
answer = {"version": "%d.%d" % sys.version_info[:2], "ensurepip": util.find_spec("ensurepip") is not None, "pip": pip}
print(json.dumps(answer))
"""


def _at_least(version: str, oldest: tuple[int, int]) -> bool:
    parts = version.split(".")[:2]
    return all(part.isdigit() for part in parts) and tuple(int(part) for part in parts) >= oldest


def _run(words: list[str], python: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PYTHON_UNUSABLE.error(
            f"{python} does not start", evidence=[str(error)], next=f"{python} --version"
        ) from error
    if done.returncode != 0:
        raise PYTHON_UNUSABLE.error(
            f"{python} ended with exit status {done.returncode}",
            evidence=done.stderr.strip().splitlines()[-5:],
            next=f"{python} --version",
        )
    return done.stdout
