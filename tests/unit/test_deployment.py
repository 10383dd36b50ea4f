"""Deployments on a real file system: complete or not there, readable by whom they should be, pruned."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie import systemd
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance import deployment, lease_host, preflight, step_switch
from ansible.module_utils.aerie.instance.keys import server_key
from ansible.module_utils.aerie.instance.lease import Claim, Controller
from ansible.module_utils.aerie.instance.spec import Release, Spec
from ansible.module_utils.aerie.instance.state import ACCEPTED, InstanceState, InstanceStore, instances
from ansible.module_utils.aerie.instance.step import Step
from spec_made import SETTINGS, spec


@pytest.fixture
def release(tmp_path: Path) -> Release:
    site = tmp_path / "site-packages"
    (site / "sglang" / "srt").mkdir(parents=True)
    (site / "sglang" / "__init__.py").write_text("x = 1\n")
    (site / "sglang" / "srt" / "a.py").write_text("y = 2\n")
    os.utime(site / "sglang" / "__init__.py", ns=(10**18 + 7, 10**18 + 7))
    (site / "sglang-0.5.23.dist-info").mkdir()
    (site / "sglang-0.5.23.dist-info" / "RECORD").write_text("")
    return Release(
        "0.5.23",
        "/v",
        "/v/bin/python",
        str(site / "sglang"),
        str(site / "sglang-0.5.23.dist-info"),
        "a",
        "index",
    )


@pytest.fixture
def store(tmp_path: Path) -> InstanceStore:
    return InstanceStore(str(tmp_path / "state"), "default")


def build(store: InstanceStore, wanted: Spec, secrets: dict[str, str] | None = None) -> Path:
    return deployment.build(store, wanted, secrets or {}, os.getgid())


def test_the_tree_is_a_copy_that_keeps_times_and_shares_nothing(
    store: InstanceStore, release: Release
) -> None:
    made = build(store, spec(release))
    source, copy = Path(release.package_dir) / "__init__.py", made / "site" / "sglang" / "__init__.py"
    assert copy.read_text() == "x = 1\n"
    assert copy.stat().st_mtime_ns == source.stat().st_mtime_ns
    assert copy.stat().st_ino != source.stat().st_ino
    assert (made / "site" / "sglang-0.5.23.dist-info" / "RECORD").is_file()
    assert str(made) in (made / "unit.service").read_text()


def test_a_half_made_deployment_is_none_and_is_swept(
    store: InstanceStore, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = spec(release)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(deployment, "write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        build(store, wanted)
    assert store.spec(wanted.digest) is None
    assert [p.name for p in store.deployments.iterdir()] == [deployment.BUILDING + wanted.digest]
    monkeypatch.undo()
    build(store, wanted)
    assert [p.name for p in store.deployments.iterdir()] == [wanted.digest]


def test_building_twice_leaves_the_first(store: InstanceStore, release: Release) -> None:
    first = build(store, spec(release)).stat().st_ino
    assert build(store, spec(release)).stat().st_ino == first


def test_an_edited_deployment_is_exchanged_for_a_new_one(store: InstanceStore, release: Release) -> None:
    final = build(store, spec(release))
    source = final / "site" / "sglang" / "__init__.py"
    before = source.read_text()
    source.write_text("print('here')\n")
    build(store, spec(release))
    assert source.read_text() != before
    deployment.build(store, spec(release), {}, os.getgid(), replace=True)
    assert source.read_text() == before
    assert [one.name for one in store.deployments.iterdir()] == [final.name]


def test_keys_lie_in_one_file_that_others_cannot_read(store: InstanceStore, release: Release) -> None:
    made = build(store, spec(release, api_key="hunter2"), {"api_key": "hunter2"})
    config = made / "config.yaml"
    assert json.loads(config.read_text()) == {"api-key": "hunter2"}
    assert config.stat().st_mode & 0o777 == 0o640
    holders = [p for p in made.rglob("*") if p.is_file() and "hunter2" in p.read_text(errors="replace")]
    assert holders == [config]
    logging = json.loads((made / "logging.json").read_text())
    assert logging["loggers"]["sglang.srt.entrypoints.engine"]["level"] == "WARNING"


def test_no_space_is_said_before_anything_is_made(
    store: InstanceStore, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100 << 20, 99 << 20, 1 << 20)
    )
    with pytest.raises(AerieError) as refused:
        build(store, spec(release))
    assert refused.value.kind.code == "no-disk-space"
    assert "1 MiB free" in refused.value.what
    assert not list(store.deployments.iterdir())


@pytest.mark.parametrize(("free", "counts"), [(deployment.PLENTY, False), (deployment.PLENTY - 1, True)])
def test_files_are_counted_only_where_room_is_short(
    store: InstanceStore, release: Release, monkeypatch: pytest.MonkeyPatch, free: int, counts: bool
) -> None:
    counted: list[Path] = []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(free, 0, free))
    monkeypatch.setattr(deployment, "tree_bytes", lambda package: counted.append(package) or 1)
    build(store, spec(release))
    assert bool(counted) is counts


def test_prune_keeps_what_it_is_told(store: InstanceStore, release: Release) -> None:
    digests = [build(store, spec(release, port=port)).name for port in (1, 2, 3)]
    assert deployment.prune(store, [digests[0], digests[2]]) == [digests[1]]
    assert sorted(p.name for p in store.deployments.iterdir()) == sorted([digests[0], digests[2]])


def test_state_survives_and_a_torn_record_is_an_empty_one(store: InstanceStore) -> None:
    assert store.load() == InstanceState()
    store.create()
    store.save(InstanceState(phase=ACCEPTED, accepted="d", history=[{"digest": "d"}]))
    assert store.load().accepted == "d"
    store.set_current("d")
    store.set_current("e")
    assert store.current() == "e"
    (store.root / "state.json").write_text('{"phase": "acc')
    assert store.load() == InstanceState()
    assert instances(str(store.root.parent)) == ["default"]


def test_the_salt_is_made_once_and_private(store: InstanceStore) -> None:
    assert store.salt(create=False) is None
    made = store.salt(create=True)
    assert store.salt(create=False) == made
    assert (store.root / ".salt").stat().st_mode & 0o777 == 0o600


@pytest.fixture
def keyed(store: InstanceStore, release: Release, tmp_path: Path) -> dict[str, Any]:
    """Settings with an API key."""
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text("{}")
    (tmp_path / "target" / "model.safetensors").write_bytes(b"w")
    return {
        **SETTINGS,
        "state_dir": str(store.root.parent),
        "release": vars(release),
        "model_path": str(tmp_path / "target"),
        "draft_model_path": "",
        "speculative": {},
        "api_key": "k",
    }


def test_on_a_host_without_a_salt_check_mode_says_when_the_digest_is_known(
    store: InstanceStore, keyed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It named a digest of a throw-away salt, another one at each look."""
    monkeypatch.setattr(systemd, "show", lambda name: systemd.UnitState.parse(name, "LoadState=not-found"))
    steps = [Step({**keyed, "state": state}, check=True) for state in ("planned", "built", "started")]
    for step in steps:
        step.spec = step.make_spec()
        assert (step.digest, list(step.served())) == ("", ["events"])
    step_switch.built(steps[1])
    step_switch.started(steps[2])
    assert steps[1].actions == ["build deployment (digest known after build)"]
    assert "make deployment (digest known after build) current" in steps[2].actions
    assert "deployments/(known after build)/site" in steps[2].diff["after"]
    plain = Step({**keyed, "state": "planned", "api_key": ""}, check=True)
    plain.spec = plain.make_spec()
    assert plain.digest
    assert not store.root.exists()


def test_under_the_lease_a_first_plan_names_the_deployment_that_is_built_with_its_key(
    store: InstanceStore, keyed: dict[str, Any]
) -> None:
    """The first deployment with a key was gated with the key file of a digest that was never built: HTTP 401."""
    lease_host.take(store, Claim(Controller("c", "m", "b", "p", 1, "1", "u", "a")))
    planned, built = (Step({**keyed, "state": state}, check=False) for state in ("planned", "built"))
    planned.spec, built.spec = planned.make_spec(), built.make_spec()
    assert built.spec is not None
    build(store, built.spec, {"api_key": "k"})
    assert planned.digest == built.digest
    assert server_key(Path(planned.served()["key_file"])) == "k"


@pytest.mark.parametrize("name", ["", "A", "a b", "../x", "-a", "a" * 33])
def test_instance_names(name: str) -> None:
    with pytest.raises(AerieError) as refused:
        InstanceStore("/s", name)
    assert refused.value.kind.code == "bad-instance-name"


def model(path: Path, shards: dict[str, str] | None = None) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    if shards is None:
        (path / "model.safetensors").write_text("w")
    else:
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    return path


def test_a_whole_model_passes_and_its_config_is_hashed(tmp_path: Path) -> None:
    found = preflight.check_model("target", str(model(tmp_path / "m")), "sglang_server_model_path")
    assert found["config_sha256"] == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


def test_what_is_missing_of_a_model_is_named(tmp_path: Path) -> None:
    cut = model(tmp_path / "cut", {"a": "1.safetensors", "b": "2.safetensors"})
    (cut / "1.safetensors").write_text("w")
    (cut / "2.safetensors").write_text("")
    with pytest.raises(AerieError, match="1 of 2 weight files are missing") as refused:
        preflight.check_model("draft", str(cut), "sglang_server_draft_model_path")
    assert refused.value.evidence == ["2.safetensors"]
    with pytest.raises(AerieError, match=r"has no config\.json") as refused:
        preflight.check_model("target", str(tmp_path / "nowhere" / "m"), "sglang_server_model_path")
    assert f"nearest directory that exists: {tmp_path}" in refused.value.evidence
    assert "sglang_server_model_path" in refused.value.next


@pytest.mark.skipif(os.geteuid() != 0, reason="changing to another user needs root")
def test_a_closed_directory_is_found_as_the_service_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    weights = model(tmp_path / "m") / "model.safetensors"
    with pytest.raises(AerieError) as refused:
        preflight.check_readable([weights], "nobody", "sglang_server_model_path")
    assert refused.value.kind.code == "model-unreadable"
    assert "Permission denied" in refused.value.evidence[0]
    assert preflight.check_readable([weights], "root", "x")
    assert not preflight.check_readable([weights], "no-such-user", "x")
