"""A plan that takes the lease: only when there is something to do, and it compares once more under it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance import deployer, lease_host
from ansible.module_utils.aerie.instance.lease import Claim, Controller
from ansible.module_utils.aerie.instance.state import InstanceStore

ME = {"host": "laptop", "machine": "m1", "boot": "b1", "pid": 7, "start": "1"}
CLAIM = {"controller": ME, "ttl": 60, "dead": None, "override": None}


class Plans:
    """What one look after the other finds; notes the settings and the lease's token of each."""

    def __init__(self, store: InstanceStore, *found: bool | Exception) -> None:
        self.store, self.found = store, list(found)
        self.asked: list[Mapping[str, Any]] = []
        self.tokens: list[str] = []

    def __call__(self, settings: Mapping[str, Any], check: bool) -> dict[str, Any]:
        held = lease_host.read(self.store)
        self.asked.append(settings)
        self.tokens.append(held.token if held else "")
        now = self.found.pop(0)
        if isinstance(now, Exception):
            raise now
        return {"plan": {"changed": now}, "digest": "d1", "look": len(self.tokens)}


@pytest.fixture
def store(tmp_path: Path) -> InstanceStore:
    return InstanceStore(str(tmp_path), "default")


def planned(
    store: InstanceStore, plans: Plans, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> dict[str, Any]:
    monkeypatch.setattr(deployer, "_compare", plans)
    settings = {
        "state": "planned", "state_dir": str(store.root.parent), "instance": "default", "claim": CLAIM,
        "lease": "an older one",
    }  # fmt: skip
    return deployer.run({**settings, **more}, check=bool(more.get("check")))


def test_it_is_taken_before_the_look_that_counts(
    store: InstanceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = Plans(store, True, True)
    result = planned(store, plans, monkeypatch)
    held = lease_host.read(store)
    assert held is not None
    assert held.controller == Controller.from_mapping(ME)
    assert held.ttl_s == 60
    assert result["lease"] == held.token
    assert result["look"] == 2
    assert plans.tokens == ["", held.token]


@pytest.mark.parametrize(
    ("more", "looks"),
    [({"claim": {}}, [True]), ({"check": True}, [True]), ({}, [False]), ({}, [True, False])],
)
def test_none_is_held_without_anything_to_do_or_anybody_who_asks(
    store: InstanceStore, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], looks: list[bool]
) -> None:
    result = planned(store, Plans(store, *looks), monkeypatch, **more)
    assert result["lease"] == ""
    assert result["plan"]["changed"] is looks[-1]
    assert lease_host.read(store) is None


def test_what_is_refused_under_it_gives_it_back(
    store: InstanceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="gone"):
        planned(store, Plans(store, True, OSError("gone")), monkeypatch)
    assert lease_host.read(store) is None


def test_another_run_s_is_left_alone(store: InstanceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, _ = lease_host.take(store, Claim(Controller(host="ci", pid=9)))
    plans = Plans(store, True)
    with pytest.raises(AerieError) as held:
        planned(store, plans, monkeypatch)
    assert held.value.kind.code == "lease-held"
    assert lease_host.read(store) == theirs
    assert planned(store, Plans(store, True, True), monkeypatch, claim={**CLAIM, "dead": theirs.token})[
        "lease"
    ]


def test_a_rollback_stays_with_what_it_found(store: InstanceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = Plans(store, True, True)
    planned(store, plans, monkeypatch, digest="previous")
    assert [one["digest"] for one in plans.asked] == ["previous", "d1"]


def test_the_last_step_gives_it_back_when_it_has_worked(
    store: InstanceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = lease_host.take(store, Claim(Controller.from_mapping(ME)))[0].token
    settings = {
        "state": "accepted",
        "state_dir": str(store.root.parent),
        "instance": "default",
        "lease": token,
    }

    def fails(*_: object) -> dict[str, Any]:
        raise OSError("no room")

    monkeypatch.setattr(deployer, "_carry_out", fails)
    with pytest.raises(OSError, match="no room"):
        deployer.run({**settings, "last": True}, check=False)
    assert lease_host.read(store) is not None
    monkeypatch.setattr(deployer, "_carry_out", lambda *_: {})
    assert deployer.run(settings, check=False)["released"] is False
    assert lease_host.read(store) is not None
    result = deployer.run({**settings, "last": True}, check=False)
    assert (result["released"], result["lease"]) == (True, token)
    assert lease_host.read(store) is None
