"""The listening sockets of an instance against its record: read for the gates and for ``status``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import processes, systemd
from ..errors import AerieError, ErrorKind
from ..instance.state import InstanceStore
from ..processes import Listener
from . import nft
from .ports import RENDEZVOUS_OPEN, UNEXPECTED_SOCKET, Ports, open_to_others, unexpected_listeners
from .traffic import Closed
from .traffic_control import controlled

NOTHING_RUNS = ErrorKind(
    "nothing-runs", "A running instance was to be looked at, but its unit has no process."
)


@dataclass(frozen=True)
class Sockets:
    """What an instance listens on.

    unexpected: sockets that nothing asked for. controlled: the deployment's unit closes ports by nftables. closed:
    what nftables closes for it; None when it cannot be told. ports: None for an instance without a deployment.
    """

    instance: str
    unit: str
    listening: tuple[Listener, ...]
    unexpected: tuple[Listener, ...]
    controlled: bool
    closed: Closed | None
    ports: Ports | None

    @property
    def rendezvous_open(self) -> bool:
        """The rendezvous port can be reached from other hosts although it was to be closed."""
        if (
            not self.controlled
            or self.ports is None
            or not open_to_others(self.listening, self.ports.rendezvous)
        ):
            return False
        return self.closed is None or self.ports.rendezvous not in self.closed.rendezvous

    def as_result(self) -> dict[str, Any]:
        """As the module returns it."""
        return {
            "listening": [str(one) for one in self.listening],
            "unexpected": [described(one) for one in self.unexpected],
            "rendezvous_closed": bool(
                self.closed and self.ports and self.ports.rendezvous in self.closed.rendezvous
            ),
        }


def look(store: InstanceStore) -> Sockets:
    """Read the sockets of everything in the unit's cgroup. Raises nothing-runs when there is nothing in it."""
    unit = systemd.show(store.unit_name)
    members = processes.pids_in_cgroup(unit.cgroup) if unit.cgroup else []
    if not members:
        raise NOTHING_RUNS.error(
            f"{store.unit_name} has no process (it is {unit.active or unit.load})",
            next=f"journalctl -u {store.unit_name} -b -e",
        )
    return compare(store, members)


def compare(store: InstanceStore, members: Sequence[int]) -> Sockets:
    """As :func:`look`, for the given processes; an instance that does not run has none."""
    record: Mapping[str, Any] = store.spec(store.current()) or {}
    listening = processes.listeners(pids=list(members)) if members else []
    listening.sort(key=lambda one: (one.port, one.address))
    under_control = controlled(record)
    return Sockets(
        instance=store.instance,
        unit=store.unit_name,
        listening=tuple(listening),
        unexpected=tuple(unexpected_listeners(record, listening)) if record else (),
        controlled=under_control,
        closed=_closed(store.instance) if under_control else Closed(),
        ports=Ports.of(record) if record else None,
    )


def _closed(instance: str) -> Closed | None:
    """What nftables closes; None when nft does not say, which counts as nothing."""
    try:
        return nft.read_table().closed(instance)
    except AerieError:
        return None


def check(found: Sockets) -> None:
    """Raise unexpected-socket or rendezvous-open."""
    if found.unexpected:
        raise UNEXPECTED_SOCKET.error(
            f"{found.unit} listens on {len(found.unexpected)} sockets that nothing asked for",
            evidence=[described(one) for one in found.unexpected][:20],
            next=f"keep GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME at lo, name a wanted port by its server argument, "
            f"or find its use: ss -ltnp; journalctl -u {found.unit} -b",
        )
    if found.rendezvous_open and found.ports is not None:
        raise RENDEZVOUS_OPEN.error(
            f"port {found.ports.rendezvous} of {found.unit} is open to other hosts",
            evidence=[described(one) for one in found.listening if one.port == found.ports.rendezvous],
            next=f"nft list table inet aerie; journalctl -u {found.unit} -b | grep nft",
        )


def complaints(found: Sockets, *, accepted: bool) -> list[str]:
    """The same as lines of drift, and a serving port that refuses clients although the gates passed."""
    lines = [f"listens on {described(one)}, which nothing asked for" for one in found.unexpected]
    if found.rendezvous_open and found.ports is not None:
        lines.append(f"rendezvous port {found.ports.rendezvous} is open to other hosts")
    if found.controlled and found.closed and found.closed.refused and accepted:
        ports = ", ".join(map(str, sorted(found.closed.refused)))
        lines.append(f"accepted, but new connections from other hosts to port {ports} are refused")
    return lines


def labelled(found: Sockets) -> list[str]:
    """Each socket that more than loopback reaches, with its use, and how many there are on loopback."""
    lines = [
        _label(found, one)
        for one in found.listening
        if open_to_others([one], one.port) or _serves(found, one)
    ]
    rest = len(found.listening) - len(lines)
    return [*lines, f"{rest} on loopback"] if rest else lines


def _serves(found: Sockets, one: Listener) -> bool:
    return found.ports is not None and one.port == found.ports.serving


def _label(found: Sockets, one: Listener) -> str:
    closed = found.closed or Closed()
    if one in found.unexpected:
        return f"{one} (unexpected)"
    if found.ports is not None and one.port == found.ports.rendezvous:
        return f"{one} (rendezvous, {'closed' if one.port in closed.rendezvous else 'open'} to other hosts)"
    if one.port in closed.refused:
        return f"{one} (refused to other hosts)"
    return str(one)


def described(one: Listener) -> str:
    """``10.0.0.5:40001, pid 77 (user sglang): sglang::scheduler``."""
    holders = [processes.read_process(pid) for pid in one.pids]
    return f"{one}, {', '.join(each.describe() for each in holders if each) or 'holder not visible'}"
