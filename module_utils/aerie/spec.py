"""The spec of an instance: everything that decides how it runs, and its digest.

Two runs with the same inventory give the same digest; anything that would need a restart changes it. Secrets enter
as a hash salted on the host, so a record never helps to guess a key, and a changed key still changes the digest.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SPEC_VERSION = 1
DIGEST_LENGTH = 16  # characters of the sha256 that name a deployment's directory
# Stands for the deployment's own path wherever a spec needs it: the path holds the digest, so it cannot be part of it.
DEPLOYMENT = "@DEPLOYMENT@"


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

    def as_dict(self) -> dict[str, Any]:
        """The record that is kept beside a deployment (``spec.json``)."""
        return {
            "version": SPEC_VERSION,
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
        """sha256 of the canonical JSON, shortened to the name of the deployment's directory."""
        return digest_of(self.as_dict())


def digest_of(record: Mapping[str, Any]) -> str:
    """The digest of a spec's record: independent of the order of keys."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
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


def secret_hash(salt: bytes, value: str) -> str:
    """HMAC-SHA256 of a secret under the host's own salt."""
    return hmac.new(salt, value.encode(), hashlib.sha256).hexdigest()


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What changes between two spec records, a line each, as a person would say it. Secrets are named, not shown."""
    lines: list[str] = []
    if old.get("mode") != new.get("mode"):
        lines.append(f"mode {old.get('mode')} -> {new.get('mode')}")
    old_release, new_release = old.get("release") or {}, new.get("release") or {}
    if old_release.get("release") != new_release.get("release"):
        lines.append(f"release {old_release.get('release')} -> {new_release.get('release')}")
    elif old_release != new_release:
        lines.append(f"release {new_release.get('release')} installed anew")
    lines += _words(_flags(_command(old)), _flags(_command(new)), "")
    lines += _words(old.get("environment") or {}, new.get("environment") or {}, "environment ")
    for role in ("target", "draft"):
        before, after = _model(old, role), _model(new, role)
        same_path = bool(before and after) and before.get("path") == after.get("path")
        if same_path and before.get("config_sha256") != after.get("config_sha256"):
            lines.append(f"{role} model's config.json changed on disk")
    lines += layer_id_changes(old, new)
    lines += _patches(old, new)
    for name in sorted(set(old.get("secrets") or {}) | set(new.get("secrets") or {})):
        was, now = (old.get("secrets") or {}).get(name), (new.get("secrets") or {}).get(name)
        if was != now:
            lines.append(f"{name} {'set' if not was else 'removed' if not now else 'changed'}")
    if old.get("unit") != new.get("unit") and not lines:
        lines.append("unit file changed")
    return lines


def _model(record: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    return (record.get("models") or {}).get(role) or {}


def _command(record: Mapping[str, Any]) -> list[str]:
    """The command with the user's draft in place of the deployment's copy of it: that is what a person named."""
    path = _model(record, "draft").get("path")
    copy = f"{DEPLOYMENT}/draft"
    return [path if path and word == copy else word for word in record.get("command") or []]


def layer_id_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The line about the layer ids that a draft is served with; of another draft, what becomes of its own ids."""
    before, after = _model(old, "draft"), _model(new, "draft")
    was, now = before.get("layer_ids"), after.get("layer_ids")
    same = all(before.get(key) == after.get(key) for key in ("path", "config_sha256"))
    own = (after if now else before).get("config_layer_ids")
    if same:
        was, now = was or own, now or own
    elif now:
        was = own
    else:
        return []
    return [] if was == now else [f"draft layer ids {_shown(was)} -> {_shown(now)}"]


def _patches(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    before, after = (
        {one["name"]: one["sha256"] for one in record.get("patches") or []} for record in (old, new)
    )
    applied = [name for name in after if name not in before]
    reverted = [name for name in before if name not in after]
    changed = [name for name in after if before.get(name, after[name]) != after[name]]
    groups = ((applied, "to apply"), (reverted, "to revert"), (changed, "changed"))
    return [_count(names, verb) for names, verb in groups if names]


def _count(names: list[str], verb: str) -> str:
    """``patches to apply: a, b``, and of many ``7 patches to apply: a, b, c, …``."""
    if len(names) <= 4:
        return f"patch{'es' if len(names) > 1 else ''} {verb}: {', '.join(names)}"
    return f"{len(names)} patches {verb}: {', '.join(names[:3])}, …"


def _shown(ids: list[int] | None) -> str:
    return f"[{','.join(str(one) for one in ids)}]" if ids else "none"


def _flags(command: list[str]) -> dict[str, str]:
    """``[--a, 1, 2, --b]`` -> ``{--a: "1 2", --b: ""}``; the interpreter and module in front are left out."""
    flags: dict[str, str] = {}
    current = None
    for word in command:
        if word.startswith("--"):
            current = word
            flags[current] = ""
        elif current is not None:
            flags[current] = f"{flags[current]} {word}".strip()
    return flags


def _words(old: Mapping[str, str], new: Mapping[str, str], prefix: str) -> list[str]:
    lines = []
    for name in sorted(set(old) | set(new)):
        if name in old and name not in new:
            lines.append(f"{prefix}{name} {old[name]} removed".replace("  ", " "))
        elif name in new and name not in old:
            lines.append(f"{prefix}{name} {new[name]} added".replace("  ", " "))
        elif old[name] != new[name]:
            lines.append(f"{prefix}{name} {old[name]} -> {new[name]}")
    return lines
