"""A draft served with other layer ids than its checkpoint names: the spec, the directory, and nothing besides."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie.draft import copy as draft_copy
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance import deployment, preflight
from ansible.module_utils.aerie.instance.deployer import run
from ansible.module_utils.aerie.instance.difference import differences
from ansible.module_utils.aerie.instance.spec import Release
from ansible.module_utils.aerie.instance.state import InstanceStore
from spec_made import MODELS, SETTINGS, spec

IDS = "eagle_aux_hidden_state_layer_ids"


def draft(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint on disk, and its entry in a spec."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_text("weights")
    (path / "tokenizer").mkdir()
    return dict(preflight.check_model("draft", str(path), "sglang_server_draft_model_path"))


def models(entry: dict[str, Any]) -> dict[str, Any]:
    return {**MODELS, "draft": entry}


DRAFT = {"path": "/m/d", "config_sha256": "1"}
THIRD = {**DRAFT, "layer_ids": [3, 31, 59], "config_layer_ids": [2, 30, 58]}


def test_without_ids_or_with_the_same_a_spec_is_as_it_always_was(tmp_path: Path) -> None:
    entry = draft(tmp_path / "d", {"eagle_config": {IDS: [1, 3, 5]}})
    assert draft_copy.with_layer_ids(entry, None) == entry
    assert draft_copy.with_layer_ids(entry, []) == entry
    assert draft_copy.with_layer_ids(entry, [1, 3, 5]) == entry
    assert set(entry) == {"path", "config_sha256"}


def test_the_digest_of_a_plain_draft_is_pinned() -> None:
    """A change of this value restarts every server that runs, unless SPEC_VERSION went up with it."""
    plain = spec(models=models(DRAFT))
    assert plain.digest == "8fb1fc140c73cdc5"
    assert plain.command[plain.command.index("--speculative-draft-model-path") + 1] == "/m/d"


@pytest.mark.parametrize(
    ("config", "own"),
    [
        ({"eagle_config": {IDS: [2, 4, 6]}}, [2, 4, 6]),
        ({"eagle_config": {}}, None),
        ({"eagle_config": None}, None),
        ({}, None),
        ({IDS: [1, 3, 5]}, None),
        ({"eagle_config": {IDS: "1,3,5"}}, None),
    ],
)
def test_other_ids_are_in_the_spec_beside_those_of_the_checkpoint(
    tmp_path: Path, config: dict[str, Any], own: list[int] | None
) -> None:
    entry = draft(tmp_path / "d", config)
    assert draft_copy.with_layer_ids(entry, [1, 3, 5]) == {
        **entry,
        "layer_ids": [1, 3, 5],
        "config_layer_ids": own,
    }


def test_only_the_ids_are_rewritten() -> None:
    before = {"a": 1e-05, IDS: [9], "eagle_config": {"use_aux_hidden_state": True, IDS: [2]}, "z": ["ü"]}
    assert draft_copy.rewritten(before, [3]) == {
        "a": 1e-05,
        "eagle_config": {"use_aux_hidden_state": True, IDS: [3]},
        "z": ["ü"],
    }
    assert before["eagle_config"] == {"use_aux_hidden_state": True, IDS: [2]}
    assert draft_copy.rewritten({"eagle_config": None}, [3]) == {"eagle_config": {IDS: [3]}}


def test_the_command_names_the_deployments_copy() -> None:
    made = spec(models=models(THIRD))
    assert (
        made.command[made.command.index("--speculative-draft-model-path") + 1]
        == f"@DEPLOYMENT@/{draft_copy.DIRECTORY}"
    )
    assert made.digest != spec(models=models(DRAFT)).digest


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        (DRAFT, THIRD, ["draft layer ids [2,30,58] -> [3,31,59]"]),
        (THIRD, DRAFT, ["draft layer ids [3,31,59] -> [2,30,58]"]),
        (THIRD, {**THIRD, "layer_ids": [4, 32, 60]}, ["draft layer ids [3,31,59] -> [4,32,60]"]),
        (DRAFT, {**THIRD, "config_layer_ids": None}, ["draft layer ids none -> [3,31,59]"]),
        (THIRD, THIRD, []),
        (THIRD, {**THIRD, "config_sha256": "2"}, ["draft model's config.json changed on disk",
                                                  "draft layer ids [2,30,58] -> [3,31,59]"]),
        (DRAFT, {**DRAFT, "config_sha256": "2"}, ["draft model's config.json changed on disk"]),
        ({"path": "/m/e", "config_sha256": "9"}, THIRD, ["draft /m/e -> /m/d",
                                                         "draft layer ids [2,30,58] -> [3,31,59]"]),
        (THIRD, {"path": "/m/e", "config_sha256": "9"}, ["draft /m/d -> /m/e"]),
    ],
)  # fmt: skip
def test_a_change_reads_as_a_person_would_say_it(
    old: dict[str, Any], new: dict[str, Any], lines: list[str]
) -> None:
    one = spec(models=models(old), draft_model_path=old["path"])
    two = spec(models=models(new), draft_model_path=new["path"])
    assert (one.digest == two.digest) == (not lines)
    assert differences(one.as_dict(), two.as_dict()) == lines


def test_of_a_server_without_speculation_the_ids_are_said_too() -> None:
    plain, two = spec(speculative={}), spec(models=models(THIRD))
    assert "draft layer ids [2,30,58] -> [3,31,59]" in differences(plain.as_dict(), two.as_dict())
    assert not [line for line in differences(two.as_dict(), plain.as_dict()) if "layer ids" in line]


@pytest.fixture
def release(tmp_path: Path) -> Release:
    package = tmp_path / "site-packages" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    return Release("0.5.23", "/v", "/v/bin/python", str(package), "", "a", "index")


def test_the_deployment_holds_links_and_a_config_of_its_own(tmp_path: Path, release: Release) -> None:
    own = {IDS: [1], "eagle_config": {IDS: [2, 4, 6]}, "hidden_size": 64}
    entry = draft_copy.with_layer_ids(draft(tmp_path / "d", own), [1, 3, 5])
    store = InstanceStore(str(tmp_path / "state"), "default")
    made = deployment.build(store, spec(release, models(entry)), {}, os.getgid()) / draft_copy.DIRECTORY
    assert json.loads((made / "config.json").read_text()) == {
        "hidden_size": 64,
        "eagle_config": {IDS: [1, 3, 5]},
    }
    assert not (made / "config.json").is_symlink()
    assert (made / "config.json").stat().st_mode & 0o777 == 0o644
    assert made.stat().st_mode & 0o777 == 0o755
    assert {p.name: str(p.readlink()) for p in made.iterdir() if p.is_symlink()} == {
        name: str(tmp_path / "d" / name) for name in ("model.safetensors", "tokenizer")
    }
    # The checkpoint is as it was, also after the deployment is gone.
    deployment.prune(store, [])
    assert not made.exists()
    assert json.loads((tmp_path / "d" / "config.json").read_text()) == own
    assert (tmp_path / "d" / "model.safetensors").read_text() == "weights"
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer",
    ]


def test_a_deployment_of_a_plain_draft_holds_none(tmp_path: Path, release: Release) -> None:
    entry = draft(tmp_path / "d", {"eagle_config": {IDS: [1, 3, 5]}})
    store = InstanceStore(str(tmp_path / "state"), "default")
    made = deployment.build(store, spec(release, models(entry)), {}, os.getgid())
    assert not (made / draft_copy.DIRECTORY).exists()


def test_a_config_that_changes_between_plan_and_build_is_refused(tmp_path: Path, release: Release) -> None:
    entry = draft_copy.with_layer_ids(draft(tmp_path / "d", {"eagle_config": {IDS: [2]}}), [1])
    (tmp_path / "d" / "config.json").write_text("{}")
    store = InstanceStore(str(tmp_path / "state"), "default")
    wanted = spec(release, models(entry))
    with pytest.raises(AerieError) as refused:
        deployment.build(store, wanted, {}, os.getgid())
    assert refused.value.kind.code == "draft-changed-meanwhile"
    assert hashlib.sha256(b"{}").hexdigest() in refused.value.evidence[1]
    assert store.spec(wanted.digest) is None


@pytest.mark.parametrize(
    ("algorithm", "ids", "copied"),
    [("EAGLE3", [1, 3, 5], True), ("eagle3", [1, 3, 5], True), ("EAGLE3", [], False), ("EAGLE", [1, 3, 5], False)],
)  # fmt: skip
def test_what_a_step_serves(
    tmp_path: Path, release: Release, algorithm: str, ids: list[int], copied: bool
) -> None:
    entry = draft(tmp_path / "d", {"eagle_config": {IDS: [2, 4, 6]}})
    target = draft(tmp_path / "t", {})
    settings = {
        **SETTINGS,
        "state": "built",
        "release": vars(release),
        "model_path": target["path"],
        "draft_model_path": entry["path"],
        "draft_layer_ids": ids,
        "speculative": {"algorithm": algorithm},
        "state_dir": str(tmp_path / "state"),
    }
    done = run(settings, check=True)
    directory = f"{tmp_path}/state/default/deployments/{done['digest']}"
    assert done["served"] == {
        "site_packages": f"{directory}/site",
        "draft": f"{directory}/draft" if copied else entry["path"],
        "events": "",
        "key_file": "",
    }
    assert not (tmp_path / "state").exists()
