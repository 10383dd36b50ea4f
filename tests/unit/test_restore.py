"""Going back: what can be started again, where a failure leads, what a rollback without a name means."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie import systemd
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.files import sha256_of
from ansible.module_utils.aerie.instance import deployment, drain, gated, restore, step_switch
from ansible.module_utils.aerie.instance.keys import client_key
from ansible.module_utils.aerie.instance.restore import Candidate
from ansible.module_utils.aerie.instance.spec import SPEC_VERSION, Release
from ansible.module_utils.aerie.instance.state import ACCEPTED, FAILED, InstanceState, InstanceStore
from ansible.module_utils.aerie.instance.step import Step
from ansible.module_utils.aerie.systemd import UnitState
from spec_made import spec

SPECULATION = {"algorithm": "NGRAM", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4}


class Made:
    """A host with two accepted deployments: production (last), then baseline."""

    def __init__(self, place: Path) -> None:
        package = place / "v" / "sglang"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        python = place / "v" / "python"
        python.write_text("")
        self.model = place / "target"
        self.model.mkdir()
        (self.model / "config.json").write_text("{}")
        models = {"target": {"path": str(self.model), "config_sha256": sha256_of(self.model / "config.json")}}
        release = Release("0.5.23", str(place / "v"), str(python), str(package), "", "a", "index")
        self.python = python
        self.store = InstanceStore(str(place / "state"), "default")
        self.specs = {
            mode: spec(release, models, mode=mode, speculative=speculative, api_key="k")
            for mode, speculative in (
                ("production", SPECULATION),
                ("baseline", {}),
            )
        }
        self.record = InstanceState()
        for mode in ("production", "baseline"):
            one = self.specs[mode]
            deployment.build(self.store, one, {"api_key": "k"}, os.getgid())
            gates = {"accept_length": 2.5, "min_accept_length": 2.0} if mode == "production" else {}
            self.record.history.append(
                {"digest": one.digest, "mode": mode, "release": "0.5.23", "at": "then", "gates": gates}
            )
        self.record.accepted = self.specs["production"].digest

    def directory(self, mode: str) -> Path:
        return self.store.deployment(self.specs[mode].digest)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def edit(made: Made) -> None:
    path = made.directory("baseline") / "spec.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "user": "root"}))


@pytest.mark.parametrize(
    ("hurt", "lacks"),
    [
        (lambda made: None, []),
        (lambda made: shutil.rmtree(made.directory("baseline")), ["its directory is gone"]),
        (lambda made: (made.directory("baseline") / "spec.json").unlink(), ["no record in"]),
        (edit, ["its record was edited"]),
        (lambda made: shutil.rmtree(made.directory("baseline") / "site"), ["its tree is gone"]),
        (lambda made: (made.directory("baseline") / "config.yaml").unlink(), ["its API keys are gone"]),
        (lambda made: made.python.unlink(), ["its release 0.5.23 is gone"]),
        (lambda made: (made.model / "config.json").unlink(), ["its target model is gone"]),
        (
            lambda made: (made.model / "config.json").write_text("[]"),
            ["its target model's config.json changed on disk"],
        ),
    ],
)
def test_what_keeps_a_deployment_from_being_started(
    made: Made, hurt: Callable[[Made], Any], lacks: list[str]
) -> None:
    hurt(made)
    found = restore.missing(made.store, made.specs["baseline"].digest, {})
    assert len(found) == len(lacks)
    assert all(text.startswith(start) for text, start in zip(found, lacks, strict=True))


@pytest.mark.parametrize(
    ("required", "lacks"),
    [
        ({"NCCL_ALGO": "Ring"}, []),
        ({"NCCL_ALGO": None}, []),
        ({"NCCL_NVLS_ENABLE": 0}, ["this host requires today: NCCL_NVLS_ENABLE is not set"]),
        ({"NCCL_NVLS_ENABLE": None}, ["this host requires today: NCCL_NVLS_ENABLE is not set"]),
        ({"NCCL_ALGO": "Tree"}, ["this host requires today: NCCL_ALGO is 'Ring', 'Tree' is required"]),
    ],
)
def test_what_the_host_requires_today_holds_for_the_way_back(
    made: Made, told: list[tuple[str, ...]], required: dict[str, Any], lacks: list[str]
) -> None:
    baseline = made.specs["baseline"].digest
    assert (
        restore.missing(made.store, baseline, restore.required_of({"required_environment": required}))
        == lacks
    )
    asked = {"digest": baseline, "required_environment": required}
    if lacks:
        with pytest.raises(AerieError) as caught:
            restore.settings_of(made.store, made.record, asked)
        assert lacks[0] in caught.value.message()
    else:
        assert restore.settings_of(made.store, made.record, asked)["mode"] == "baseline"
    step = step_of(made, state="failed", failure={}, failed_digest="0" * 16, required_environment=required)
    step_switch.failed(step)
    assert bool(step.found["back_to"]) == (not lacks)
    assert all(text in candidate["text"] for candidate in step.found["candidates"] for text in lacks)


def test_the_way_back_skips_what_lacks_a_required_variable(made: Made, told: list[tuple[str, ...]]) -> None:
    production = made.specs["production"]
    added = spec(production.release, production.models, speculative={}, environment={"NCCL_NVLS_ENABLE": "0"})
    deployment.build(made.store, added, {}, os.getgid())
    made.record.history.append(
        {"digest": added.digest, "mode": "production", "release": "0.5.23", "at": "then"}
    )
    required = {"NCCL_NVLS_ENABLE": "0"}
    step = step_of(made, state="failed", failure={}, failed_digest="0" * 16, required_environment=required)
    step_switch.failed(step)
    assert step.found["back_to"] == added.digest
    assert restore.previous(made.store, made.record, required) == added.digest


def one(digest: str, mode: str = "production", *missing: str) -> Candidate:
    return Candidate(digest, mode, "0.5.23", "then", None, missing)


@pytest.mark.parametrize(
    ("found", "failed", "mode", "back"),
    [
        ([], "x", "production", None),
        ([one("a"), one("b")], "x", "production", "a"),
        ([one("a", "debug"), one("b")], "x", "production", "a"),  # it was serving when the run began
        ([one("a", "production", "gone"), one("b")], "x", "production", "b"),
        ([one("a", "production", "gone")], "x", "production", None),
        # the last accepted one itself fails: no mode that nobody asked for
        ([one("a"), one("b", "debug"), one("c")], "a", "production", "c"),
        ([one("a"), one("b", "debug")], "a", "production", None),
    ],
)
def test_where_a_failure_leads(found: list[Candidate], failed: str, mode: str, back: str | None) -> None:
    got = restore.way_back(found, failed, mode)
    assert (got.digest if got else None) == back


def test_a_rollback_without_a_name_goes_one_back_and_stays(made: Made) -> None:
    production, baseline = (made.specs[mode].digest for mode in ("production", "baseline"))
    assert restore.previous(made.store, made.record, {}) == baseline
    made.record.history = [
        {**made.record.history[1], "rolled_back_from": production}, made.record.history[0]
    ]  # fmt: skip
    assert restore.previous(made.store, made.record, {}) == baseline


def test_without_anything_earlier_it_says_what_there_is(made: Made) -> None:
    shutil.rmtree(made.directory("baseline"))
    with pytest.raises(AerieError) as caught:
        restore.previous(made.store, made.record, {})
    text = caught.value.message()
    assert "[no-way-back]" in text
    assert "cannot be started: its directory is gone" in text
    assert "accept length 2.50" in text


def test_the_record_alone_gives_settings_spec_and_gates(made: Made) -> None:
    digest = made.specs["production"].digest
    settings = restore.settings_of(
        made.store, made.record, {"instance": "default", "digest": digest, "model_path": None}
    )
    assert settings["model_path"] == str(made.model)
    assert settings["mode"] == "production"
    back = restore.spec_of(settings["recorded"])
    assert back == made.specs["production"]
    assert back.digest == digest
    found = gated.of_spec(settings["recorded"], made.record.history[0])
    assert found["speculative"] is True
    assert found["num_steps"] == 3
    assert found["accepted_floor"] == 2.0
    step = Step({"state_dir": str(made.store.root.parent), "cache_dir": "/c", **settings}, check=False)
    step.spec = back
    assert step.served()["key_file"] == f"{made.directory('production')}/config.yaml"
    assert client_key(None, step.served()["key_file"]) == "k"
    assert "k" not in [*found.values(), *step.served().values()]


def test_a_name_that_is_not_there_is_refused_with_what_is(made: Made) -> None:
    with pytest.raises(AerieError) as caught:
        restore.settings_of(made.store, made.record, {"digest": "0123456789abcdef"})
    assert "[deployment-gone]" in caught.value.message()
    assert f"there is: {made.specs['baseline'].digest}: baseline" in caught.value.message()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """systemctl's verbs, and a unit that runs and is enabled."""
    verbs: list[tuple[str, ...]] = []
    text = "LoadState=loaded\nActiveState=active\nMainPID=1\nUnitFileState=enabled\n"
    monkeypatch.setattr(systemd, "show", lambda name: UnitState.parse(name, text))
    monkeypatch.setattr(systemd, "systemctl", lambda *words, **_: verbs.append(words))
    return verbs


def step_of(made: Made, **settings: Any) -> Step:
    made.store.save(made.record)
    state_dir = str(made.store.root.parent)
    return Step({"state_dir": state_dir, "instance": "default", "mode": "x", **settings}, check=False)


def test_failed_stops_it_and_says_where_to_go(made: Made, told: list[tuple[str, ...]]) -> None:
    failure = {"step": "Gates", "code": "a-code", "message": "too low"}
    step = step_of(made, state="failed", failure=failure, failed_digest="0" * 16)
    step_switch.failed(step)
    assert ("stop", "--no-block", "sglang-default.service") in told
    assert ("disable", "--quiet", "sglang-default.service") in told
    assert step.found["back_to"] == made.specs["production"].digest
    assert step.found["failure"] == failure
    assert made.store.load().phase == FAILED
    assert made.store.load().failure == "Gates: too low"


def test_a_full_disk_does_not_keep_it_from_being_stopped(
    made: Made, told: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = step_of(made, state="failed", failure={"step": "s", "message": "m"}, failed_digest="0" * 16)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(step.store, "save", full)
    step_switch.failed(step)
    assert ("stop", "--no-block", "sglang-default.service") in told
    assert step.found["back_to"]
    assert any("could not be recorded" in text for text in step.actions)


@pytest.mark.parametrize(("rollback", "reason"), [(False, "Gates: too low"), (True, "")])
def test_the_reason_stays_after_the_way_back(
    made: Made, told: list[tuple[str, ...]], rollback: bool, reason: str
) -> None:
    made.record.failure = "Gates: too low"
    baseline = made.specs["baseline"].digest
    step = step_of(made, state="accepted", digest=baseline, gates={}, rollback=rollback, keep=2)
    step.spec = restore.spec_of(step.settings["recorded"])
    step_switch.accepted(step)
    record = made.store.load()
    assert (record.phase, record.accepted, record.failure) == (ACCEPTED, baseline, reason)
    assert record.history[0]["mode"] == "baseline"
    assert bool(record.history[0].get("rolled_back_from")) == rollback


def test_a_server_that_is_measured_again_is_recorded_again(made: Made, told: list[tuple[str, ...]]) -> None:
    """The record of an accepted server takes the new figures and what was asked; a step without figures leaves it."""
    digest = made.specs["production"].digest
    made.record.phase = ACCEPTED
    made.record.history[0]["rolled_back_from"] = "f" * 16
    for gates, figure in (({}, 2.5), ({"accept_length": 2.7}, 2.7)):
        step = step_of(made, state="accepted", gates=gates, keep=2, gate={"min_accept_length": 2.2})
        step.spec = made.specs["production"]
        step_switch.accepted(step)
        entry = made.store.load().history[0]
        assert (entry["digest"], entry["gates"]["accept_length"]) == (digest, figure)
    assert entry["asked"] == {"min_accept_length": 2.2}
    assert entry["rolled_back_from"] == "f" * 16


def test_the_record_keeps_the_time_of_its_build(made: Made) -> None:
    """Source files younger than the record count as touched, so new lines of the unit must not make it younger."""
    one = made.specs["production"]
    path = made.directory("production") / "spec.json"
    os.utime(path, ns=(10**18, 10**18))
    wanted = replace(one, unit="# another comment\n" + one.unit)
    assert wanted.digest == one.digest
    deployment.renew_record(made.store, wanted)
    assert (made.store.spec(one.digest) or {})["unit"] == wanted.unit
    assert path.stat().st_mtime_ns == 10**18
    assert (made.directory("production") / "unit.service").read_text().startswith("# another comment")


@pytest.mark.parametrize(("seconds", "text"), [(90, "TimeoutStopSec=90\n"), (0, "TimeoutStopSec=195\n")])
def test_a_stop_takes_the_time_that_is_asked_now(
    made: Made,
    told: list[tuple[str, ...]],
    seconds: int,
    text: str,
    tmp_path: Path,
) -> None:
    step = step_of(made, state="stopped", stop_timeout=seconds, disable=False)
    step.store.unit_path = tmp_path / "a.service"
    step.store.unit_path.write_text("TimeoutStopSec=195\n")
    step_switch.stopped(step)
    assert step.store.unit_path.read_text() == text
    assert told == [
        *([("daemon-reload",)] if seconds else []),
        ("stop", "--no-block", "sglang-default.service"),
    ]
    assert step.found == {"ended": False}


def test_what_an_earlier_version_named_keeps_its_name(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Aerie's own update must not restart a server for the way in which digests are made."""
    old = replace(made.specs["production"], version=1)
    deployment.build(made.store, old, {"api_key": "k"}, os.getgid())
    step = step_of(made, state="planned")
    assert step._as_named(made.specs["production"]).version == SPEC_VERSION
    made.store.set_current(old.digest)
    assert step._as_named(made.specs["production"]) == old
    other = replace(made.specs["production"], user="other")
    assert step._as_named(other) == other


@pytest.mark.parametrize(("requests", "ended"), [(0, True), (3, False)])
def test_a_server_with_nothing_to_drain_is_waited_for(
    made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, requests: int, ended: bool
) -> None:
    """One that drains is left to the wait, which shows how many requests it has."""
    made.store.set_current(made.specs["production"].digest)
    looks = iter(["active\nMainPID=7", "deactivating", "inactive"])
    show = lambda name: UnitState.parse(name, f"LoadState=loaded\nActiveState={next(looks)}\n")  # noqa: E731
    monkeypatch.setattr(systemd, "show", show)
    monkeypatch.setattr(systemd, "systemctl", lambda *_, **__: None)
    monkeypatch.setattr(drain, "load_of", lambda *_: drain.Load(requests))
    step = step_of(made, state="stopped", disable=False)
    step.store.unit_path = tmp_path / "a.service"
    step_switch.stopped(step)
    assert step.found == {"ended": ended}
