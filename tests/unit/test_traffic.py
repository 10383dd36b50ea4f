"""The nftables chain of an instance: what is loaded, and reading back what nft lists."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.network import nft, traffic_control
from ansible.module_utils.aerie.network.traffic import (
    NO_TABLE,
    Closed,
    Table,
    load_script,
    parse_table,
    remove_script,
    remove_table_script,
)
from ansible.module_utils.aerie.network.traffic_control import TrafficControl
from spec_made import SETTINGS, spec

DATA = Path(__file__).parent / "data" / "nft"
BOTH = Closed.of([31000], [30000])
# Listed by nft on a test host (tests/hosts) after `nft -f` of load_script("default", BOTH) and of a chain "other".
LISTED = {name: (DATA / f"{name}.json").read_text() for name in ("bookworm-1.0.6", "trixie-1.1.3")}


@pytest.mark.parametrize("text", LISTED.values(), ids=LISTED)
def test_what_nft_lists_is_read_back(text: str) -> None:
    table = parse_table(text)
    assert table.chains == {"sglang-default": BOTH, "sglang-other": Closed.of([31001])}
    assert table.closed("default") == BOTH
    assert table.closed("absent") == Closed()


def test_no_table_is_an_empty_one() -> None:
    assert parse_table("") == NO_TABLE


@pytest.mark.parametrize("text", ["{}", "[]", "no json", '{"nftables": [{"chain": {}}]}'])
def test_what_is_not_nfts_json_is_an_error(text: str) -> None:
    with pytest.raises(AerieError) as raised:
        parse_table(text)
    assert raised.value.kind.code == "nft-unreadable"


def chain_of(items: list[dict[str, Any]]) -> dict[str, Any]:
    return next(item["chain"] for item in items if item.get("chain", {}).get("name") == "sglang-default")


def rules_of(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item["rule"] for item in items if item.get("rule", {}).get("chain") == "sglang-default"]


CHANGES: dict[str, Callable[[list[dict[str, Any]]], object]] = {
    "other hook": lambda items: chain_of(items).update(hook="forward"),
    "other priority": lambda items: chain_of(items).update(prio=0),
    "drops by itself": lambda items: chain_of(items).update(policy="drop"),
    "no hook": lambda items: chain_of(items).pop("hook"),
    "loopback not open": lambda items: rules_of(items)[0]["expr"].pop(0),
    "rule without a comment": lambda items: rules_of(items)[1].pop("comment"),
    "other verdict": lambda items: rules_of(items)[1]["expr"].__setitem__(2, {"drop": None}),
    "every packet": lambda items: rules_of(items)[2]["expr"].pop(1),
    "a range of ports": lambda items: rules_of(items)[2]["expr"][0]["match"].update(right={"range": [1, 9]}),
    "udp": lambda items: rules_of(items)[2]["expr"][0]["match"]["left"]["payload"].update(protocol="udp"),
    "all but new ones": lambda items: rules_of(items)[2]["expr"][1]["match"].update(op="!="),
    "less than all flags": lambda items: rules_of(items)[2]["expr"][1]["match"]["left"]["&"][1].remove("rst"),
    "other flags": lambda items: rules_of(items)[2]["expr"][1]["match"].update(right="ack"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_chain_that_somebody_changed_is_not_taken_for_ours(
    change: Callable[[list[dict[str, Any]]], object],
) -> None:
    items = copy.deepcopy(json.loads(LISTED["bookworm-1.0.6"]))
    change(items["nftables"])
    table = parse_table(json.dumps(items))
    assert table.closed("default") is None
    assert table.closed("other") == Closed.of([31001])


def test_the_script_touches_its_own_chain_only() -> None:
    for script in (load_script("a", BOTH), load_script("a", BOTH, anew=True), remove_script("a")):
        for line in script.splitlines():
            assert line == "add table inet aerie" or "inet aerie sglang-a" in line
    assert load_script("a", Closed()) == remove_script("a")


def test_the_script_closes_new_connections_and_keeps_loopback_open_first() -> None:
    lines = load_script("a", BOTH).splitlines()
    assert lines[:4] == [
        "add table inet aerie",
        "add chain inet aerie sglang-a { type filter hook input priority -10; policy accept; }",
        "flush chain inet aerie sglang-a",
        'add rule inet aerie sglang-a iif "lo" accept',
    ]
    new = "tcp flags & (fin | syn | rst | ack) == syn reject with tcp reset"
    assert lines[4:] == [
        f'add rule inet aerie sglang-a tcp dport 31000 {new} comment "rendezvous"',
        f'add rule inet aerie sglang-a tcp dport 30000 {new} comment "refused"',
    ]


class Host:
    """A double of nft: a table, and the scripts that were loaded."""

    def __init__(self, tmp_path: Path, chains: dict[str, Closed | None]) -> None:
        self.chains = chains
        self.exists = bool(chains)
        self.loaded: list[str] = []
        self.state_dir = tmp_path
        (tmp_path / "default").mkdir(exist_ok=True)

    def load(self, script: str) -> None:
        self.loaded.append(script)
        self.exists = script != remove_table_script()
        for closed in (BOTH, Closed.of([31000]), Closed.of([31000, 31005], [30000, 30005])):
            for anew in (False, True):
                if script == load_script("default", closed, anew=anew):
                    self.chains["sglang-default"] = closed
        if script in (remove_script("default"), remove_table_script()):
            self.chains.pop("sglang-default", None)

    def run(self, state: str, check: bool = False, **options: Any) -> dict[str, Any]:
        settings = {"state": state, "instance": "default", "state_dir": str(self.state_dir)}
        return TrafficControl(
            {**settings, "port": 30000, "rendezvous_port": 31000, **options}, check=check
        ).run()

    @property
    def at_start(self) -> str:
        return (self.state_dir / "default" / "traffic.nft").read_text().partition("\n")[2]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    one = Host(tmp_path, {})
    monkeypatch.setattr(nft, "require", lambda: None)
    monkeypatch.setattr(nft, "locked", nullcontext)
    monkeypatch.setattr(nft, "read_table", lambda: Table(dict(one.chains), exists=one.exists))
    monkeypatch.setattr(nft, "load", one.load)
    monkeypatch.setattr(nft, "NFT", Path("/bin/sh"))
    return one


def test_a_road_of_states_each_idempotent(host: Host) -> None:
    for state, live, at_start in (
        ("refused", BOTH, BOTH),
        ("admitted", Closed.of([31000]), Closed.of([31000])),
        ("absent", None, Closed.of([31000])),
    ):
        assert host.run(state, check=True)["changed"]
        assert host.run(state)["changed"]
        assert host.chains.get("sglang-default") == live
        assert host.at_start == load_script("default", at_start)
        before = list(host.loaded)
        assert host.run(state) == {**host.run(state), "changed": False, "actions": []}
        assert host.loaded == before


def test_check_mode_changes_nothing_and_shows_the_same_diff(host: Host) -> None:
    foreseen = host.run("refused", check=True)
    assert (host.loaded, list((host.state_dir / "default").iterdir())) == ([], [])
    done = host.run("refused")
    assert foreseen == done
    assert done["diff"]["after"].splitlines() == [
        "default: port 31000 closed to other hosts (rendezvous)",
        "default: port 30000 closed to other hosts (refused)",
    ]


def test_the_last_chain_takes_the_table_with_it_and_another_keeps_it(host: Host) -> None:
    host.run("refused")
    host.run("absent")
    assert host.loaded[-1] == remove_table_script()
    host.chains |= {"sglang-default": BOTH, "sglang-other": Closed.of([31001])}
    host.run("absent")
    assert host.loaded[-1] == remove_script("default")
    assert host.chains == {"sglang-other": Closed.of([31001])}


def test_an_empty_table_that_a_units_end_left_is_removed(host: Host) -> None:
    host.exists = True
    assert host.run("absent")["changed"]
    assert host.loaded == [remove_table_script()]
    assert not host.run("absent")["changed"]


def test_a_changed_chain_is_made_anew(host: Host) -> None:
    host.chains["sglang-default"] = None
    result = host.run("admitted")
    assert result["diff"]["before"] == "default: a chain that Aerie did not write\n"
    assert host.loaded == [load_script("default", Closed.of([31000]), anew=True)]


def test_while_the_port_changes_the_old_one_is_refused_too_but_not_at_the_next_start(host: Host) -> None:
    old = spec(port=30005, rendezvous_port=31005)
    directory = host.state_dir / "default" / "deployments" / old.digest
    directory.mkdir(parents=True)
    (directory / "spec.json").write_text(json.dumps(old.as_dict()))
    (host.state_dir / "default" / "current").symlink_to(f"deployments/{old.digest}")
    assert host.run("refused")["closed"] == {"rendezvous": [31000, 31005], "refused": [30000, 30005]}
    assert host.at_start == load_script("default", BOTH)
    assert host.run("admitted", port=None, rendezvous_port=None)["closed"]["rendezvous"] == [31005]


def test_without_nft_nothing_is_closed_and_closing_says_what_to_type(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(nft, "NFT", tmp_path / "nft")
    assert not host.run("absent")["changed"]
    with pytest.raises(AerieError) as raised:
        host.run("refused")
    assert raised.value.kind.code == "nft-missing"
    assert raised.value.next.startswith("apt-get install nftables")


def test_control_is_read_off_the_unit() -> None:
    assert not traffic_control.controlled(spec().as_dict())
    template = (
        SETTINGS["unit_template"] + "ExecStartPre=-+/usr/sbin/nft -f /var/lib/sglang/default/traffic.nft\n"
    )
    assert traffic_control.controlled(spec(unit_template=template).as_dict())


def test_on_a_full_disk_a_chain_is_still_removed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.run("refused")

    def no_room(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(traffic_control, "write_atomic", no_room)
    assert any("No space left" in one for one in host.run("absent")["actions"])
    assert "sglang-default" not in host.chains
    with pytest.raises(OSError, match="No space left"):
        host.run("refused", port=30005)
