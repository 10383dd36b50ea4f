"""One bridge and one /24 per checkout; each host has a network namespace of its own, with one cable to the bridge."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from . import syscalls
from .commands import run, succeeds
from .errors import HostsError
from .files import locked, read_json, write_json
from .layout import Layout

POOL = IPv4Network("10.213.0.0/16")
FIRST_OCTET, LAST_OCTET = 11, 250
# Two checkouts that choose at the same moment would not see each other's bridge yet.
MACHINE_LOCK = Path("/run/lock/aerie-hosts.lock")
# Below what overlays and tunnels of cloud machines carry, so that no packet of a host needs splitting.
MTU = "1400"


def choose_subnet(seed: int, taken: Iterable[IPv4Network]) -> IPv4Network | None:
    """The first /24 of the pool, counted from ``seed``, that overlaps nothing taken; None when all do."""
    busy = list(taken)
    subnets = list(POOL.subnets(new_prefix=24))
    for step in range(len(subnets)):
        candidate = subnets[(seed + step) % len(subnets)]
        if not any(candidate.overlaps(network) for network in busy):
            return candidate
    return None


def choose_octet(last: int, used: Iterable[int]) -> int | None:
    """The next free last octet after ``last``; None when all are used.

    Going round, instead of taking the lowest, keeps a new host off the address of the one just destroyed, to which an
    ssh ControlPersist master may still hold a connection.
    """
    busy = set(used)
    count = LAST_OCTET - FIRST_OCTET + 1
    for step in range(1, count + 1):
        candidate = FIRST_OCTET + (last - FIRST_OCTET + step) % count
        if candidate not in busy:
            return candidate
    return None


def taken_networks(
    addresses: list[dict[str, Any]], routes: list[dict[str, Any]], own_bridge: str
) -> list[IPv4Network]:
    """What ``ip -j addr`` and ``ip -j route`` say is in use. Routes as wide as the pool or wider do not count: a /24
    of ours is more specific and wins."""
    found = []
    for link in addresses:
        if link.get("ifname") == own_bridge:
            continue
        for info in link.get("addr_info", []):
            if info.get("family") == "inet":
                found.append(IPv4Network(f"{info['local']}/{info['prefixlen']}", strict=False))
    for route in routes:
        if route.get("dev") == own_bridge or route.get("dst", "default") == "default" or ":" in route["dst"]:
            continue
        network = IPv4Network(route["dst"], strict=False)
        if network.prefixlen > POOL.prefixlen:
            found.append(network)
    return found


def _link_exists(name: str) -> bool:
    return succeeds(["ip", "link", "show", "dev", name])


def ensure_bridge(layout: Layout) -> IPv4Network:
    """The checkout's network; makes the bridge when it is not there. The caller holds the checkout's lock."""
    recorded = read_json(layout.state / "network.json") or {}
    if recorded.get("subnet") and _link_exists(layout.bridge):
        return IPv4Network(recorded["subnet"])
    with locked(MACHINE_LOCK):
        delete_link(layout.bridge)
        addresses = json.loads(run(["ip", "-j", "address", "show"]))
        routes = json.loads(run(["ip", "-j", "-4", "route", "show"]))
        seed = int(layout.id[:2], 16)
        subnet = choose_subnet(seed, taken_networks(addresses, routes, layout.bridge))
        if subnet is None:
            raise HostsError(f"no free /24 in {POOL}", next="ip -4 address; remove what is not needed")
        run(["ip", "link", "add", layout.bridge, "type", "bridge"])
        run(["ip", "address", "add", f"{subnet[1]}/24", "dev", layout.bridge])
        run(["ip", "link", "set", layout.bridge, "mtu", MTU, "up"])
    write_json(
        layout.state / "network.json", {"subnet": str(subnet), "last": recorded.get("last", FIRST_OCTET - 1)}
    )
    return subnet


def take_octet(layout: Layout, used: Iterable[int]) -> int:
    """Choose a last octet and remember it. The caller holds the checkout's lock and has made the bridge."""
    recorded = read_json(layout.state / "network.json")
    octet = choose_octet(recorded["last"], used)
    if octet is None:
        raise HostsError("no free address in this checkout's network", next="hosts list; hosts down NAME")
    write_json(layout.state / "network.json", {**recorded, "last": octet})
    return octet


def delete_link(name: str) -> None:
    if _link_exists(name):
        succeeds(["ip", "link", "delete", "dev", name])


def cables(layout: Layout) -> dict[int, str]:
    """The checkout's cables that are plugged into this machine, by last octet."""
    found = {}
    for link in json.loads(run(["ip", "-j", "link", "show"])):
        bridge, _, octet = link["ifname"].partition("-")
        if bridge == layout.bridge and octet.isdigit():
            found[int(octet)] = link["ifname"]
    return found


def new_namespace() -> int:
    """A file descriptor of a new network namespace, which lives as long as someone holds it.

    Not ``ip netns add``: that pins the namespace with a mount, which a killed run would leave behind.
    """
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        made = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        syscalls.enter(own, syscalls.CLONE_NEWNET)
    finally:
        os.close(own)
    return made


def plug(bridge: str, cable: str, address: IPv4Address, gateway: IPv4Address, namespace: int) -> None:
    """Lay a cable from the bridge to eth0 in the namespace."""
    inside = f"/proc/self/fd/{namespace}"
    delete_link(cable)
    run(
        f"ip link add {cable} mtu {MTU} type veth peer name eth0 mtu {MTU} netns {inside}".split(),
        pass_fds=[namespace],
    )
    run(["ip", "link", "set", cable, "master", bridge, "up"])
    # nsenter and not `ip netns exec`, which would mount /sys anew.
    for command in (
        ["link", "set", "lo", "up"],
        ["address", "add", f"{address}/24", "dev", "eth0"],
        ["link", "set", "eth0", "up"],
        # Leads nowhere (nothing forwards it), but programs and facts ask for the address of the default route.
        ["route", "add", "default", "via", str(gateway)],
    ):
        run(["nsenter", f"--net={inside}", "ip", *command], pass_fds=[namespace])
