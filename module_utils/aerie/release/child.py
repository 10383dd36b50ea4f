"""A child process of a release's python, as the service user: for what needs the release's own packages.

It may run code that ships with a model, so it gets a small environment of its own, no GPU in sight, no network
look-ups and a private temporary directory that is its home, cache and working directory and is removed afterwards.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ErrorKind

USER_UNUSABLE = ErrorKind(
    "accept-user-unusable", "The tokenizer's user does not exist, or only root could become that user."
)
_LARGEST_FILE = 1 << 30


class ChildFailed(Exception):
    """It could not be started, or did not end in time; the text says which."""


@dataclass(frozen=True)
class ChildJob:
    """How to run it. ``user`` None: as the user that runs this. ``timeout`` in seconds."""

    python: str
    user: str | None = None
    pythonpath: str | None = None
    timeout: float = 120.0


@dataclass(frozen=True)
class Finished:
    """Exit code, both outputs, and the file that was asked for."""

    code: int
    out: str
    err: str
    file: bytes | None = None

    def answer(self, mark: str) -> dict[str, Any]:
        """The JSON object after the last ``mark`` in its output: libraries print too. Empty when there is none."""
        lines = [line[len(mark) :] for line in self.out.splitlines() if line.startswith(mark)]
        try:
            found: Any = json.loads(lines[-1]) if lines else {}
        except ValueError:
            found = {}
        return found if isinstance(found, dict) else {}

    @property
    def last_words(self) -> str:
        """The last line of its error output, or its exit code."""
        last = next((line.strip() for line in reversed(self.err.splitlines()) if line.strip()), "")
        return last or f"exit code {self.code} without a word"


def run_child(job: ChildJob, code: str, payload: bytes, file: str | None = None) -> Finished:
    """Run ``code`` with ``payload`` on its standard input. ``file``: what to bring back out of its directory."""
    with child_started(job, code, stderr=subprocess.PIPE) as (child, home):
        status, out, err = _talk(child, payload, job.timeout)
        return Finished(status, out, err, _read(home / file) if file else None)


@contextmanager
def child_started(
    job: ChildJob, code: str, *, stderr: int = subprocess.STDOUT
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The child with pipes to talk through, and its directory; at the end its process group is killed.

    ``job.timeout`` is the caller's to keep. Raises ChildFailed when it cannot be started.
    """
    account = account_of(job.user)
    home = tempfile.mkdtemp(prefix="aerie-child-")
    try:
        identity: dict[str, Any] = {}
        if account is not None and account.pw_uid != os.geteuid():
            os.chown(home, account.pw_uid, account.pw_gid)
            groups = os.getgrouplist(account.pw_name, account.pw_gid)
            identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": groups}
        try:
            child = subprocess.Popen(
                [job.python, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=home,
                env=environment(job.pythonpath, home),
                start_new_session=True,
                **identity,
            )
        except OSError as error:
            raise ChildFailed(f"{type(error).__name__}: {error}") from error
        try:
            yield child, Path(home)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def environment(pythonpath: str | None, home: str) -> dict[str, str]:
    """All that the child gets to see of an environment."""
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "HF_HOME": home,
        "TMPDIR": home,
        "LC_ALL": "C.UTF-8",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
    }
    if pythonpath:
        env["PYTHONPATH"] = pythonpath
    return env


def account_of(user: str | None) -> pwd.struct_passwd | None:
    """The user's account; an error when there is none or only root could become it."""
    if user is None:
        return None
    try:
        account = pwd.getpwnam(user)
    except KeyError as error:
        raise USER_UNUSABLE.error(
            f"there is no user {user!r} on this host", next="install first, or correct the option user"
        ) from error
    if os.geteuid() not in (0, account.pw_uid):
        raise USER_UNUSABLE.error(
            f"only root can run a process as {user!r}",
            evidence=[f"effective user id {os.geteuid()}"],
            next="run the task with become: true",
        )
    return account


def _talk(child: subprocess.Popen[bytes], payload: bytes, timeout: float) -> tuple[int, str, str]:
    try:
        out, err = child.communicate(payload, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise ChildFailed(f"it did not finish within {timeout:.0f} s") from error
    return child.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


def _read(path: Path) -> bytes | None:
    """A plain file's bytes; None when it is not there. The child's user owns the place, so no link is followed."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        return file.read() if stat.S_ISREG(found.st_mode) and found.st_size <= _LARGEST_FILE else None
