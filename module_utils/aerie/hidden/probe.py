"""The probes' directory: arm them, read what they write, remove their tensors.

The service user owns the directory and a server could put anything there, so every file is reached through a handle
of the directory itself, links are not followed, and what is read is bounded.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import secrets
import stat
import time
from collections.abc import Callable

from ..errors import AerieError, ErrorKind
from .events import Lines, Served, served

PROBES_UNUSABLE = ErrorKind(
    "hidden-probes-unusable",
    "The directory of debug mode's probes is not there, or is not the service user's own, or others can write to it.",
)
PROBES_SILENT = ErrorKind(
    "hidden-probes-silent",
    "The probes wrote nothing about the prompt. The server does not run in debug mode, or its probes do not fire.",
)

EVENTS, ARM = "events.jsonl", "arm.json"
_LARGEST = 256 << 20
_EVERY_S = 0.1
_SETTLED_S = 3.0
"""So long nothing new may come before what is there counts as all."""


class Probes:
    """The directory, opened once. Use as a context manager."""

    def __init__(self, directory: str, user: str | None) -> None:
        self.directory = directory
        self._account = pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())
        try:
            self._handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise self._unusable(f"{error.strerror}") from error
        found = os.fstat(self._handle)
        wrong = []
        if found.st_uid != self._account.pw_uid:
            wrong.append(f"it belongs to user id {found.st_uid}, not to {self._account.pw_name}")
        if found.st_mode & 0o022:
            wrong.append(f"others can write to it (mode {stat.S_IMODE(found.st_mode):04o})")
        if wrong:
            self.close()
            raise self._unusable("; ".join(wrong))

    def __enter__(self) -> Probes:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._handle)

    def arm(self, *, forwards: int, tensors: bool, layers: bool) -> str:
        """Ask the probes to speak about the next forwards; returns the id that their lines will carry."""
        name = f"aerie-{secrets.token_hex(8)}"
        wish = {"id": name, "forwards": forwards, "tensors": tensors, "layers": layers}
        fresh = f".{ARM}.{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(fresh, flags, 0o600, dir_fd=self._handle)
        with os.fdopen(handle, "w") as file:
            json.dump(wish, file)
            if os.geteuid() == 0:
                os.fchown(handle, self._account.pw_uid, self._account.pw_gid)
        os.replace(fresh, ARM, src_dir_fd=self._handle, dst_dir_fd=self._handle)
        return name

    def size(self) -> int:
        """Bytes of the events' file."""
        try:
            return os.stat(EVENTS, dir_fd=self._handle, follow_symlinks=False).st_size
        except FileNotFoundError:
            return 0

    def read(self, offset: int) -> bytes:
        """What stands in the events' file after ``offset``; empty when it is not there."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            handle = os.open(EVENTS, flags, dir_fd=self._handle)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise self._unusable(f"{EVENTS}: {error.strerror}") from error
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size - offset > _LARGEST:
            os.close(handle)
            raise self._unusable(f"{EVENTS} is no plain file, or grew by more than {_LARGEST >> 20} MiB")
        with os.fdopen(handle, "rb") as file:
            file.seek(offset if found.st_size >= offset else 0)
            return file.read()

    def wait(
        self,
        lines: Lines,
        offset: int,
        rows: int,
        complete: Callable[[Served], bool],
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Served:
        """Read until ``complete``, or until nothing came for a while, or ``timeout`` seconds are over."""
        began = heard = clock()
        while True:
            data = self.read(offset)
            offset += len(data)
            lines.feed(data)
            found = served(lines.events, rows)
            now = clock()
            heard = now if data else heard
            settled = found.states is not None and now - heard > _SETTLED_S
            if complete(found) or settled or now - began > timeout:
                return found
            sleep(_EVERY_S)

    def remove_tensors(self) -> None:
        """Remove the tensors that the probes wrote; they are large, and nobody else writes there."""
        for name in os.listdir(self._handle):  # noqa: PTH208 - a handle is no path
            if name.endswith((".safetensors", ".safetensors.part")):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self._handle)

    def _unusable(self, why: str) -> AerieError:
        return PROBES_UNUSABLE.error(
            f"the probes' directory {self.directory} cannot be used",
            evidence=[why],
            next="deploy in debug mode (ansible-playbook debug.yml), which makes it, and compare then",
        )


def silent(directory: str, lines: Lines, rows: int) -> AerieError:
    """The error for a prompt that the probes said nothing about."""
    heard = sorted({f"{one.kind} of {one.rows} rows" for one in lines.events if one.rows})
    evidence = [f"directory {directory}", f"lines of this request: {', '.join(heard[:6]) or 'none'}"]
    if lines.other:
        evidence.append(f"{lines.other} lines of other requests were written meanwhile")
    if heard:
        evidence.append(f"a prompt of {rows} tokens was sent; chunked prefill splits long ones")
    return PROBES_SILENT.error(
        "the probes said nothing about the reference prompt"
        if not heard
        else "the prompt did not come in one piece",
        evidence=evidence,
        next="set chunked_prefill_size above the prompt, or use a shorter reference"
        if heard
        else "check that the server runs in debug mode (playbooks/status.yml) with EAGLE3_DEBUG=1, and its journal",
    )
