"""Going back: which recorded deployments an instance can be brought back to, and the settings that mean one of them.

A deployment's record (``spec.json``) holds everything that its start needs, and its directory holds the rest: its own
tree, its API keys, its draft config. So going back asks nothing of today's inventory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import AerieError, ErrorKind
from ..gpu_host.env import lacking
from ..network.traffic_control import controlled
from .arguments import text_of
from .spec import CONFIG, Release, Spec, digest_of
from .state import InstanceState, InstanceStore
from .witness import changed_sources, of_configs

GONE = ErrorKind(
    "deployment-gone",
    "A recorded deployment was to be started, but something that it needs is not on the host any more.",
)
NO_WAY_BACK = ErrorKind(
    "no-way-back", "There is no earlier accepted deployment on the host that could be gone back to."
)

PREVIOUS = "previous"


@dataclass(frozen=True)
class Candidate:
    """An accepted deployment of the history. ``missing``: why it cannot be started, a line each."""

    digest: str
    mode: str
    release: str
    at: str
    accept_length: float | None
    missing: tuple[str, ...] = ()

    def describe(self) -> str:
        """One line for a person."""
        figures = f", accept length {self.accept_length:.2f}" if self.accept_length is not None else ""
        text = f"{self.digest}: {self.mode}, SGLang {self.release}, accepted {self.at}{figures}"
        return text + (f" - cannot be started: {'; '.join(self.missing)}" if self.missing else "")


Required = Mapping[str, str | None]


def required_of(settings: Mapping[str, Any]) -> Required:
    """Variables that this host requires of every server today (``gpu_host_required_env``); None: any value."""
    given = settings.get("required_environment") or {}
    return {str(name): None if value is None else text_of(value) for name, value in given.items()}


def candidates(store: InstanceStore, record: InstanceState, required: Required) -> list[Candidate]:
    """The accepted deployments that the host remembers, the last accepted first."""
    return [
        Candidate(
            digest=str(one.get("digest") or ""),
            mode=str(one.get("mode") or ""),
            release=str(one.get("release") or ""),
            at=str(one.get("at") or ""),
            accept_length=(one.get("gates") or {}).get("accept_length"),
            missing=tuple(missing(store, str(one.get("digest") or ""), required)),
        )
        for one in record.history
    ]


def missing(store: InstanceStore, digest: str, required: Required) -> list[str]:
    """What keeps a recorded deployment from being started; empty when nothing does.

    Its unit checks what the host required when it was made. What the host requires today is checked here: a variable
    that was added since, after a fault perhaps, must not be undone by going back.
    """
    directory = store.deployment(digest)
    record = store.spec(digest)
    if record is None:
        return [
            f"its directory is gone: {directory}" if not directory.is_dir() else f"no record in {directory}"
        ]
    if digest_of(record) != digest:
        return [f"its record was edited: {directory}/spec.json"]
    found = [
        f"this host requires today: {line}" for line in lacking(required, record.get("environment") or {})
    ]
    release = Release.from_mapping(record.get("release") or {})
    if not Path(release.python).exists():
        found.append(f"its release {release.release} is gone: {release.python}")
    if not (directory / "site").is_dir():
        found.append(f"its tree is gone: {directory}/site")
    else:
        found += [f"its source was edited: {line}" for line in changed_sources(directory)[:3]]
    if record.get("secrets") and not (directory / CONFIG).is_file():
        found.append(f"its API keys are gone: {directory}/{CONFIG}")
    return found + [f"its {line}" for line in of_configs(record)]


def way_back(found: Sequence[Candidate], failed: str, mode: str) -> Candidate | None:
    """Where to go after ``failed`` (a digest) did not pass its gates; None to stay stopped.

    The last accepted one that can be started. When the failed one is the last accepted itself, only others of its
    mode: nobody who asked for production wants a debug server instead, without having been asked.
    """
    own = bool(found) and found[0].digest == failed
    fit = [one for one in found if one.digest != failed and (not own or one.mode == mode)]
    return next((one for one in fit if not one.missing), None)


def previous(store: InstanceStore, record: InstanceState, required: Required) -> str:
    """The digest that a rollback without a name goes to. Raises no-way-back.

    The one that was accepted before the last. After such a rollback it is the rolled-back one again, so that a second
    call changes nothing.
    """
    found = candidates(store, record, required)
    if record.history and record.history[0].get("rolled_back_from"):
        return found[0].digest
    fit = [one for one in found[1:] if not one.missing]
    if fit:
        return fit[0].digest
    raise NO_WAY_BACK.error(
        f"instance {store.instance} has no earlier deployment to go back to",
        evidence=[one.describe() for one in found] or ["nothing was ever accepted here"],
        next="deploy with the settings that you want: ansible-playbook production.yml",
    )


def settings_of(store: InstanceStore, record: InstanceState, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a step (options of ``sglang_deployment``) with those of the deployment that its option
    ``digest`` names, under ``recorded`` its whole record. Raises no-way-back, deployment-gone."""
    given, required = str(settings["digest"]), required_of(settings)
    digest = previous(store, record, required) if given == PREVIOUS else given
    lacks = missing(store, digest, required)
    if lacks:
        raise gone(store, record, digest, lacks, required)
    spec = store.spec(digest) or {}
    models = spec.get("models") or {}
    host, port = address(spec)
    return {
        **settings,
        "digest": digest,
        "recorded": spec,
        "mode": spec.get("mode"),
        "release": spec.get("release") or {},
        "model_path": models["target"]["path"],
        "draft_model_path": (models.get("draft") or {}).get("path", ""),
        "speculative": {"algorithm": "as recorded"} if "draft" in models else {},
        "host": host,
        "port": port,
        "traffic_control": controlled(spec),
        "cache_dir": (spec.get("environment") or {}).get("HOME"),
        "draft_layer_ids": (models.get("draft") or {}).get("layer_ids") or [],
        "user": spec.get("user"),
        "group": spec.get("group"),
    }


def gone(
    store: InstanceStore, record: InstanceState, digest: str, lacks: Sequence[str], required: Required
) -> AerieError:
    """deployment-gone, with what else there is."""
    others = [one.describe() for one in candidates(store, record, required) if one.digest != digest]
    return GONE.error(
        f"deployment {digest} of instance {store.instance} cannot be started",
        evidence=[*lacks, *(f"there is: {text}" for text in others)],
        next="choose another one with -e sglang_server_rollback_to=<digest>, or deploy anew",
    )


def spec_of(record: Mapping[str, Any]) -> Spec:
    """The spec that a record was written from."""
    known = {name: record[name] for name in Spec.__dataclass_fields__ if name in record}
    release = Release.from_mapping(record.get("release") or {})
    return Spec(**{**known, "release": release, "version": int(record.get("version") or 1)})


def address(spec: Mapping[str, Any]) -> tuple[str, int]:
    """Host and port that a recorded server listens on."""
    values = dict(pairwise(spec.get("command") or []))
    return values.get("--host", "127.0.0.1"), int(values.get("--port", "30000"))
