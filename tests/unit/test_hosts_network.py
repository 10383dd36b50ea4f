"""Test hosts: subnets, addresses and names that cannot collide."""

from __future__ import annotations

import sys
from ipaddress import IPv4Network
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hosts"))

from testhosts import network
from testhosts.errors import HostsError
from testhosts.layout import INTERFACE_NAME_MAX, Layout, checkout_id, valid_name


@pytest.mark.parametrize(
    ("seed", "taken", "chosen"),
    [
        (0, [], "10.213.0.0/24"),
        (242, [], "10.213.242.0/24"),
        (5, ["10.213.5.0/24"], "10.213.6.0/24"),
        (5, ["10.213.5.128/25", "10.213.6.7/32"], "10.213.7.0/24"),
        (255, ["10.213.255.0/24"], "10.213.0.0/24"),
        (3, ["10.213.0.0/22"], "10.213.4.0/24"),
        (3, ["192.168.0.0/16"], "10.213.3.0/24"),
        (3, ["10.213.0.0/16"], None),
    ],
)
def test_choose_subnet(seed: int, taken: list[str], chosen: str | None) -> None:
    found = network.choose_subnet(seed, [IPv4Network(text) for text in taken])
    assert (None if found is None else str(found)) == chosen


@pytest.mark.parametrize(
    ("last", "used", "chosen"),
    [
        (10, [], 11),
        (11, [], 12),  # not 11 again: an ssh master may still hold a connection to it
        (11, [12, 13], 14),
        (250, [], 11),
        (249, [250, 11], 12),
        (20, range(11, 251), None),
    ],
)
def test_choose_octet(last: int, used: list[int], chosen: int | None) -> None:
    assert network.choose_octet(last, used) == chosen


def test_taken_networks_reads_what_ip_prints() -> None:
    addresses = [
        {"ifname": "eth0", "addr_info": [{"family": "inet", "local": "192.0.2.2", "prefixlen": 24}]},
        {"ifname": "other", "addr_info": [{"family": "inet", "local": "10.213.9.1", "prefixlen": 24}]},
        {"ifname": "own", "addr_info": [{"family": "inet", "local": "10.213.4.1", "prefixlen": 24}]},
        {"ifname": "eth1", "addr_info": [{"family": "inet6", "local": "fd00::2", "prefixlen": 64}]},
        {"ifname": "bare"},
    ]
    routes = [
        {"dst": "default", "dev": "eth0"},
        {"dst": "10.0.0.0/8", "dev": "vpn"},  # wider than the pool: ours is more specific
        {"dst": "10.213.16.0/20", "dev": "vpn"},
        {"dst": "10.213.4.0/24", "dev": "own"},
        {"dst": "10.213.77.1", "dev": "vpn"},
    ]
    found = {str(entry) for entry in network.taken_networks(addresses, routes, "own")}
    assert found == {"192.0.2.0/24", "10.213.9.0/24", "10.213.16.0/20", "10.213.77.1/32"}


def test_names_fit_the_kernel_and_differ_between_checkouts() -> None:
    one, two = Layout(Path("/srv/one")), Layout(Path("/srv/two"))
    for layout in (one, two):
        assert len(layout.cable(network.LAST_OCTET)) <= INTERFACE_NAME_MAX
        assert len(layout.bridge) <= INTERFACE_NAME_MAX
    assert one.bridge != two.bridge
    assert one.cgroup != two.cgroup
    assert one.cable(11) != two.cable(11)
    assert checkout_id(Path("/srv/one")) == one.id


@pytest.mark.parametrize("name", ["a", "gpu1", "a-b", "0", "x" * 32])
def test_valid_names(name: str) -> None:
    assert valid_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", "A", "a.b", "a:b", "a,b", "a/b", "..", "a b", "x" * 33, "a\n"]
)
def test_invalid_names(name: str) -> None:
    with pytest.raises(HostsError, match="no host name"):
        valid_name(name)
