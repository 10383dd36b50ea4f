"""A deployment's own copy of a draft: links to the user's files, and a config.json with other layer ids.

The ids that mean the same layers differ from release to release, so the road writes them for the release that it
deploys. The user's checkpoint is only read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ErrorKind
from ..files import read_json, write_atomic
from .ids import read_draft_ids

CHANGED = ErrorKind(
    "draft-changed-meanwhile",
    "The draft's config.json changed between the plan and the build, so the deployment would not be what was planned.",
)
DIRECTORY = "draft"  # below the deployment's directory
CONFIG = "config.json"
IDS = "eagle_aux_hidden_state_layer_ids"


def with_layer_ids(model: Mapping[str, Any], ids: Sequence[int] | None) -> dict[str, Any]:
    """The spec's entry of a draft (``{path, config_sha256}``) that is to be served with ``ids``.

    Unchanged where no ids are given or the checkpoint says the same. Else with ``layer_ids``, and with
    ``config_layer_ids``, the ids that the checkpoint serves by itself (None: the release's default).
    """
    if not ids:
        return dict(model)
    config = read_json(Path(model["path"]) / CONFIG)
    own = read_draft_ids(config if isinstance(config, dict) else {}).ids
    if own is not None and list(own) == list(ids):
        return dict(model)
    return {**model, "layer_ids": list(ids), "config_layer_ids": None if own is None else list(own)}


def is_copied(model: Mapping[str, Any] | None) -> bool:
    """Whether a deployment holds its own copy of this draft."""
    return bool(model and model.get("layer_ids"))


def rewritten(config: Mapping[str, Any], ids: Sequence[int]) -> dict[str, Any]:
    """The config with these layer ids in ``eagle_config``, the only place that SGLang reads; all else as it was."""
    nested = config.get("eagle_config")
    kept = {name: value for name, value in config.items() if name != IDS}
    return {**kept, "eagle_config": {**(nested if isinstance(nested, Mapping) else {}), IDS: list(ids)}}


def make(into: Path, model: Mapping[str, Any]) -> None:
    """Make the directory ``into`` for a draft of the spec. Raises draft-changed-meanwhile."""
    source = Path(model["path"])
    raw = (source / CONFIG).read_bytes()
    found = hashlib.sha256(raw).hexdigest()
    if found != model["config_sha256"]:
        raise CHANGED.error(
            f"{source / CONFIG} is not what the plan was made for",
            evidence=[f"sha256 planned {model['config_sha256']}", f"sha256 found   {found}"],
            next="run the playbook again when nobody writes to the draft any more",
        )
    into.mkdir()
    into.chmod(0o755)
    for entry in sorted(source.iterdir()):
        if entry.name != CONFIG:
            (into / entry.name).symlink_to(entry)
    text = json.dumps(rewritten(json.loads(raw), model["layer_ids"]), indent=2, ensure_ascii=False)
    write_atomic(into / CONFIG, text + "\n")
