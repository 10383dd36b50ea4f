"""The spec of an instance: everything that decides how it runs, and its digest.

Two runs with the same inventory give the same digest; what needs a restart changes it, and nothing else does. Secrets
enter as a hash salted on the host, so a record never helps to guess a key, and a changed key still changes the digest.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .unit_lines import essential

SPEC_VERSION = 2  # 1: the whole text of the unit was part of the digest
DIGEST_LENGTH = 16  # characters of the sha256 that name a deployment's directory
# Stands for the deployment's own path wherever a spec needs it: the path holds the digest, so it cannot be part of it.
DEPLOYMENT = "@DEPLOYMENT@"
# Stands for a secret's hash on a host that has no salt yet: the lease makes it.
UNSALTED = "known after build"
# File of a deployment that holds its API keys, so that no command line does.
CONFIG = "config.yaml"


@dataclass(frozen=True)
class Release:
    """An installed SGLang: where it lies and what proves it."""

    release: str
    path: str
    python: str
    package_dir: str
    dist_info: str
    lock_sha256: str
    source: str

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Release:
        """Read the result of the module ``sglang_release``."""
        return cls(**{name: str(given.get(name) or "") for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Spec:
    """What an instance shall be. ``models`` maps ``target``/``draft`` to ``{path, config_sha256}``.

    A draft that is served with other layer ids than its own also has what ``draft_copy.with_layer_ids`` adds.
    ``command``, ``environment`` and ``unit`` hold :data:`DEPLOYMENT` where the deployment's path belongs.
    """

    instance: str
    mode: str
    release: Release
    command: list[str]
    environment: dict[str, str]
    unit: str
    models: dict[str, dict[str, Any]]
    patches: list[dict[str, str]] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)
    user: str = "sglang"
    group: str = "sglang"
    version: int = SPEC_VERSION

    def as_dict(self) -> dict[str, Any]:
        """The record that is kept beside a deployment (``spec.json``)."""
        return {
            "version": self.version,
            "instance": self.instance,
            "mode": self.mode,
            "release": dict(vars(self.release)),
            "command": list(self.command),
            "environment": dict(self.environment),
            "unit": self.unit,
            "models": self.models,
            "patches": list(self.patches),
            "secrets": dict(self.secrets),
            "user": self.user,
            "group": self.group,
        }

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON, shortened to the name of the deployment's directory; '' without the salt."""
        return "" if UNSALTED in self.secrets.values() else digest_of(self.as_dict())


def digest_of(record: Mapping[str, Any]) -> str:
    """The digest of a spec's record: independent of the order of keys.

    Where a release was installed from is no part of it, since the lock's hash says what was; the constant in its place
    is the commonest, so that the digests of servers that run stay what they were. Of the unit, what needs a restart.
    """
    release = {**(record.get("release") or {}), "source": "index"}
    whole = {**record, "release": release}
    if int(record.get("version") or 1) >= 2:
        whole["unit"] = essential(str(record.get("unit") or ""))
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def resolved(record: Mapping[str, Any], deployment: str) -> dict[str, Any]:
    """The record with the deployment's path in place of :data:`DEPLOYMENT`: what unit and process must equal."""
    return {
        **record,
        "command": [word.replace(DEPLOYMENT, deployment) for word in record.get("command") or []],
        "environment": {
            k: v.replace(DEPLOYMENT, deployment) for k, v in (record.get("environment") or {}).items()
        },
        "unit": str(record.get("unit") or "").replace(DEPLOYMENT, deployment),
    }


def secret_hash(salt: bytes | None, value: str) -> str:
    """HMAC-SHA256 of a secret under the host's own salt."""
    return UNSALTED if salt is None else hmac.new(salt, value.encode(), hashlib.sha256).hexdigest()
