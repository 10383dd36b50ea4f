"""What a host remembers about an instance: ``<state>/<instance>/``.

``deployments/<digest>/`` are specs made into directories, ``current`` points at the one that the unit starts,
``state.json`` says how far a transition came and which deployments were accepted. It is written after the fact it
records, so a kill in between is seen as the earlier phase and the next run does that step again.
"""

from __future__ import annotations

import datetime
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ErrorKind
from ..files import read_json, replace_link, write_atomic, write_json
from ..network.ports import Ports

BAD_INSTANCE = ErrorKind("bad-instance-name", "An instance name becomes part of unit and path names.")

ACCEPTED, SWITCHED, STOPPED, FAILED, NONE = "accepted", "switched", "stopped", "failed", "none"


@dataclass
class InstanceState:
    """``phase``: accepted (gates passed), switched (deployment is current, gates not passed), stopped (by a person),
    failed (gates not passed, stopped for it), none. ``soak``: requests that the next gates must see answered, because
    SIGKILL ended a server on this instance's GPUs; 0 for no more than usual."""

    phase: str = NONE
    accepted: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)
    failure: str = ""
    soak: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {"version": 1, **vars(self)}


# sglang #22779: a server started after SIGKILL hung at about its hundredth request.
SOAK_AFTER_KILL = 150


def now() -> str:
    """UTC, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class InstanceStore:
    """The directory of one instance. Paths are made by :meth:`create`; reading never makes anything."""

    def __init__(self, state_dir: str, instance: str) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,31}", instance):
            raise BAD_INSTANCE.error(
                f"{instance!r} cannot name an instance",
                next="use lower-case letters, digits, - and _ in sglang_server_instance (32 at most)",
            )
        self.root = Path(state_dir) / instance
        self.instance = instance
        self.deployments = self.root / "deployments"
        self.unit_name = f"sglang-{instance}.service"
        self.unit_path = Path("/etc/systemd/system") / self.unit_name

    def create(self) -> None:
        """Make the directories, readable by the service user, writable by root alone."""
        self.deployments.mkdir(parents=True, exist_ok=True)
        for path in (self.root.parent, self.root, self.deployments):
            path.chmod(0o755)

    def deployment(self, digest: str) -> Path:
        return self.deployments / digest

    def spec(self, digest: str) -> dict[str, Any] | None:
        """The record of a complete deployment, or None."""
        record = read_json(self.deployment(digest) / "spec.json") if digest else None
        return record if isinstance(record, dict) else None

    def current(self) -> str:
        """The digest that ``current`` points at, or ''."""
        try:
            return (self.root / "current").readlink().name
        except (FileNotFoundError, NotADirectoryError, OSError):
            return ""

    def set_current(self, digest: str) -> None:
        replace_link(self.root / "current", f"deployments/{digest}")

    def load(self) -> InstanceState:
        """The recorded state; a missing or unreadable record is an empty one."""
        given = read_json(self.root / "state.json")
        if not isinstance(given, dict):
            return InstanceState()
        known = {key: given[key] for key in InstanceState.__dataclass_fields__ if key in given}
        return InstanceState(**known)

    def save(self, state: InstanceState) -> None:
        write_json(self.root / "state.json", state.as_dict())

    def salt(self, *, create: bool) -> bytes | None:
        """The host's salt for secret hashes (0600). None where there is none and it is not to be made."""
        path = self.root / ".salt"
        try:
            return bytes.fromhex(path.read_text())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            if not create:
                return None
            fresh = secrets.token_bytes(32)
            self.create()
            write_atomic(path, fresh.hex(), mode=0o600)
            return fresh


def instances(state_dir: str) -> list[str]:
    """Names of the instances that have a state directory on this host."""
    base = Path(state_dir)
    if not base.is_dir():
        return []
    return sorted(p.name for p in base.iterdir() if (p / "deployments").is_dir())


def ports_of_others(store: InstanceStore) -> dict[str, Ports]:
    """The ports of the current deployments of the host's other instances, by instance name."""
    base = store.root.parent
    others = (InstanceStore(str(base), name) for name in instances(str(base)) if name != store.instance)
    records = {one.instance: one.spec(one.current()) for one in others}
    return {name: Ports.of(record) for name, record in records.items() if record}
