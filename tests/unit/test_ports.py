"""Ports: which the rendezvous gets, clashes, and sockets that nothing asked for."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.network.ports import (
    EPHEMERAL,
    Ports,
    check_clashes,
    rendezvous_port,
    unexpected_listeners,
)
from ansible.module_utils.aerie.network.sockets import Sockets, check, complaints, labelled
from ansible.module_utils.aerie.network.traffic import Closed
from ansible.module_utils.aerie.processes import Listener
from spec_made import RELEASE, spec


@pytest.mark.parametrize(
    ("serving", "asked", "release", "arguments", "port"),
    [
        (30000, 0, "0.5.23", {}, 31000),
        (30000, 32001, "0.5.23", {}, 32001),
        (8000, 0, "0.4.10", {}, 9000),
        (30000, 0, "0.4.9.post6", {}, 0),  # has no --nccl-port
        (30000, 31000, "0.4.9", {}, 0),
        (32500, 0, "0.5.23", {}, 31500),  # 33500 is ephemeral
        (33000, 0, "0.5.23", {}, 32000),
        (45123, 0, "0.5.23", {}, 25123),
        (65000, 0, "0.5.23", {}, 64000),
        (30000, 0, "0.5.23", {"nnodes": 2}, 0),
        (30000, 0, "0.5.23", {"nnodes": "1"}, 31000),
        (30000, 0, "0.5.23", {"dist_init_addr": "10.0.0.1:5000"}, 0),
    ],
)
def test_rendezvous_port(
    serving: int, asked: int, release: str, arguments: dict[str, Any], port: int
) -> None:
    assert rendezvous_port(serving, asked, release, arguments) == port


def test_no_serving_port_gets_an_ephemeral_or_its_own_number() -> None:
    for serving in range(1, 65536):
        port = rendezvous_port(serving, 0, "0.5.23", {})
        assert 1024 <= port <= 65535
        assert port != serving
        assert port not in EPHEMERAL


def test_a_spec_pins_it_and_keeps_random_ports_on_loopback_unless_the_inventory_says_otherwise() -> None:
    made = spec()
    assert Ports.of(made.as_dict()).all == [30000, 31000]
    assert (made.environment["GLOO_SOCKET_IFNAME"], made.environment["NCCL_SOCKET_IFNAME"]) == ("lo", "lo")
    assert spec(environment={"GLOO_SOCKET_IFNAME": "eth0"}).environment["GLOO_SOCKET_IFNAME"] == "eth0"
    several = spec(arguments={"nnodes": 2, "dist_init_addr": "10.0.0.1:5000"})
    assert "--nccl-port" not in several.command
    assert "GLOO_SOCKET_IFNAME" not in several.environment
    with pytest.raises(AerieError, match="sglang_server_rendezvous_port"):
        spec(arguments={"nccl-port": 31000})


OTHER = Ports("127.0.0.1", 30001, 31001, (), False)


@pytest.mark.parametrize(
    ("changes", "evidence"),
    [
        ({"port": 30001}, "30001"),
        ({"port": 31001}, "31001"),
        ({"rendezvous_port": 31001}, "31001"),
        ({"rendezvous_port": 30001}, "30001"),
        ({"rendezvous_port": 30000}, "30000"),
        ({"arguments": {"disaggregation_bootstrap_port": 31001}}, "31001"),
    ],
)
def test_clashes(changes: dict[str, Any], evidence: str) -> None:
    with pytest.raises(AerieError, match=evidence) as raised:
        check_clashes(Ports.of(spec(**changes).as_dict()), {"other": OTHER})
    assert raised.value.kind.code == "port-clash"


def test_different_ports_do_not_clash() -> None:
    check_clashes(Ports.of(spec().as_dict()), {"other": OTHER})
    check_clashes(Ports("", 30000, 0, (), False), {"old": Ports("", 30001, 0, (), False)})


@pytest.mark.parametrize(
    ("changes", "address", "port", "expected"),
    [
        ({}, "127.0.0.1", 30000, True),
        ({}, "0.0.0.0", 30000, False),  # wider than asked for
        ({}, "::", 31000, True),  # the rendezvous listens everywhere, whatever --host says
        ({}, "0.0.0.0", 31000, True),
        ({}, "127.0.0.1", 40001, True),
        ({}, "::1", 40001, True),
        ({}, "::ffff:127.0.0.1", 40001, True),
        ({}, "127.0.1.1", 40001, True),
        ({}, "10.0.0.5", 40001, False),  # Gloo and NCCL without *_SOCKET_IFNAME=lo
        ({}, "::ffff:10.0.0.5", 40001, False),
        ({}, "0.0.0.0", 40001, False),
        ({"host": "0.0.0.0"}, "0.0.0.0", 30000, True),
        ({"host": "10.0.0.5"}, "10.0.0.5", 30000, True),
        ({"host": "10.0.0.5"}, "10.0.0.6", 30000, False),
        ({"host": "::"}, "::", 30000, True),
        ({"host": "gpu1"}, "10.0.0.5", 30000, True),
        ({"host": "gpu1"}, "0.0.0.0", 30000, False),
        ({"arguments": {"disaggregation_bootstrap_port": 8998}}, "0.0.0.0", 8998, True),
        ({"release": RELEASE.__class__(**{**vars(RELEASE), "release": "0.4.9"})}, "::", 22387, False),
        ({"arguments": {"nnodes": 2}}, "10.0.0.5", 40001, True),
    ],
)
def test_unexpected_listeners(changes: dict[str, Any], address: str, port: int, expected: bool) -> None:
    one = Listener(address, port, (77,))
    assert unexpected_listeners(spec(**changes).as_dict(), [one]) == ([] if expected else [one])


SERVING, MEETING = Listener("0.0.0.0", 30000, ()), Listener("::", 31000, ())
RANDOM, LOCAL = Listener("10.0.0.5", 40001, ()), Listener("127.0.0.1", 40002, ())


def sockets(closed: Closed | None, *unexpected: Listener, controlled: bool = True) -> Sockets:
    listening = (SERVING, MEETING, LOCAL, *unexpected)
    ports = Ports("0.0.0.0", 30000, 31000, (), False)
    return Sockets("default", "sglang-default.service", listening, unexpected, controlled, closed, ports)


def test_the_gate_passes_what_was_asked_for() -> None:
    check(sockets(Closed.of([31000])))
    check(sockets(Closed(), controlled=False))
    assert complaints(sockets(Closed.of([31000])), accepted=True) == []


@pytest.mark.parametrize("closed", [Closed(), Closed.of([31001]), None])
def test_an_open_rendezvous_port_fails_the_gate_and_shows_in_status(closed: Closed | None) -> None:
    with pytest.raises(AerieError, match="31000") as raised:
        check(sockets(closed))
    assert raised.value.kind.code == "rendezvous-open"
    assert complaints(sockets(closed), accepted=True) == ["rendezvous port 31000 is open to other hosts"]


def test_an_unexpected_socket_fails_the_gate_with_socket_and_holder_named() -> None:
    with pytest.raises(AerieError) as raised:
        check(sockets(Closed.of([31000]), RANDOM))
    assert raised.value.kind.code == "unexpected-socket"
    assert raised.value.evidence == ["10.0.0.5:40001, holder not visible"]
    (line,) = complaints(sockets(Closed.of([31000]), RANDOM), accepted=True)
    assert line.startswith("listens on 10.0.0.5:40001")


def test_a_port_that_stayed_refused_is_drift_only_when_accepted() -> None:
    found = sockets(Closed.of([31000], [30000]))
    assert complaints(found, accepted=False) == []
    assert "30000 are refused" in complaints(found, accepted=True)[0]


def test_status_labels_each_socket() -> None:
    assert labelled(sockets(Closed.of([31000], [30000]), RANDOM)) == [
        "0.0.0.0:30000 (refused to other hosts)",
        "[::]:31000 (rendezvous, closed to other hosts)",
        "10.0.0.5:40001 (unexpected)",
        "1 on loopback",
    ]
    assert labelled(sockets(Closed()))[1] == "[::]:31000 (rendezvous, open to other hosts)"
