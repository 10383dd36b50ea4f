"""The ports of an instance: which it shall use, whether they clash, and which listening sockets nobody asked for."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..errors import ErrorKind
from ..processes import Listener
from ..release.rules import rendezvous_port_supported

PORT_CLASH = ErrorKind(
    "port-clash",
    "Two instances of a host, or two ports of one instance, would use the same number.",
)
UNEXPECTED_SOCKET = ErrorKind(
    "unexpected-socket",
    "The server listens on a port or address that nothing asked for, so other machines may reach what SGLang means "
    "for its own processes (unauthenticated, and unpickled: CVE-2025-10164, CVE-2026-3059, CVE-2026-7301).",
)
RENDEZVOUS_OPEN = ErrorKind(
    "rendezvous-open",
    "The server's rendezvous port listens on every address, whatever --host says, and no nftables chain closes it.",
)

# Linux's default range for outgoing connections: a port in it may be taken by one at any moment.
EPHEMERAL = range(32768, 61000)
# Options whose value is a port of the server's own, beside --port and --nccl-port.
_PORT_OPTION_END = "-port"


def rendezvous_port(serving: int, asked: int, release: str, arguments: Mapping[str, Any]) -> int:
    """The port to pin the rendezvous to; 0 leaves the choice to SGLang.

    serving: the serving port; asked: sglang_server_rendezvous_port, 0 for serving + 1000, or the nearest number
    outside the ephemeral range. ``--nccl-port`` is there from 0.4.10 on. A server of several machines meets at
    ``dist_init_addr``, which its other machines must reach, so nothing is pinned or closed for it.
    """
    if not rendezvous_port_supported(release) or spans_machines(arguments):
        return 0
    if asked:
        return asked
    candidates = (serving + 1000, serving - 1000)
    fits = [one for one in candidates if 1024 <= one <= 65535 and one not in EPHEMERAL]
    return fits[0] if fits else 20000 + serving % 10000


def spans_machines(arguments: Mapping[str, Any]) -> bool:
    """Whether the server has processes on several machines. Keys in the normal form of ``arguments``."""
    return int(arguments.get("nnodes") or 1) > 1 or bool(
        arguments.get("dist_init_addr") or arguments.get("nccl_init_addr")
    )


@dataclass(frozen=True)
class Ports:
    """The ports that a spec's record names. rendezvous: 0 when none is pinned. further: other ``--*-port`` values."""

    host: str
    serving: int
    rendezvous: int
    further: tuple[int, ...]
    spans_machines: bool

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Ports:
        """Read ``spec.json``'s command line."""
        words = [str(word) for word in record.get("command") or []]
        options = {one: value for one, value in pairwise(words) if one.startswith("--")}
        further = [
            int(value)
            for option, value in options.items()
            if option.endswith(_PORT_OPTION_END)
            and option not in ("--port", "--nccl-port")
            and value.isdigit()
        ]
        return cls(
            host=options.get("--host", "127.0.0.1"),
            serving=int(options.get("--port", "30000")),
            rendezvous=int(options.get("--nccl-port", "0")),
            further=tuple(further),
            spans_machines=spans_machines(
                {
                    "nnodes": options.get("--nnodes", "1"),
                    "dist_init_addr": options.get("--dist-init-addr") or options.get("--nccl-init-addr"),
                }
            ),
        )

    @property
    def all(self) -> list[int]:
        """Every number that must be this instance's alone."""
        return [one for one in (self.serving, self.rendezvous, *self.further) if one]


def check_clashes(mine: Ports, others: Mapping[str, Ports]) -> None:
    """Raise port-clash when an instance's ports are not different from each other and from other instances'.

    others: the ports of the other instances' current deployments, by instance name.
    """
    if mine.rendezvous and mine.rendezvous in (mine.serving, *mine.further):
        raise PORT_CLASH.error(
            f"port {mine.rendezvous} is both the rendezvous port and another port of the server",
            next="set sglang_server_rendezvous_port to a free port, or to 0",
        )
    for name, theirs in sorted(others.items()):
        for port in mine.all:
            if port in theirs.all:
                which = "sglang_server_port" if port == mine.serving else "sglang_server_rendezvous_port"
                raise PORT_CLASH.error(
                    f"port {port} belongs to the instance {name} of this host already",
                    evidence=[
                        f"{name}: serving {theirs.serving}, rendezvous {theirs.rendezvous or 'not pinned'}"
                    ],
                    next=f"give this instance another {which}",
                )


def is_loopback(address: str) -> bool:
    """127.0.0.0/8, ::1, and the first in the second's clothes."""
    found = ipaddress.ip_address(address)
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def unexpected_listeners(record: Mapping[str, Any], listeners: Iterable[Listener]) -> list[Listener]:
    """The listening sockets of an instance that nothing asked for.

    record: a spec's record. listeners: the sockets that the unit's processes hold. Asked for are the serving port on
    the address of ``--host``, the rendezvous port on any address (SGLang gives no choice), every further ``--*-port``,
    and anything on loopback. A server of several machines needs ports that it chooses itself: none counts.
    """
    ports = Ports.of(record)
    if ports.spans_machines:
        return []
    return [one for one in listeners if not _asked_for(ports, one)]


def _asked_for(ports: Ports, one: Listener) -> bool:
    if is_loopback(one.address) or one.port in (ports.rendezvous, *ports.further):
        return True
    return one.port == ports.serving and _covers(ports.host, one.address)


def _covers(host: str, address: str) -> bool:
    """Whether listening on ``address`` is what ``--host`` asks for; a host name may stand for any single address."""
    try:
        asked = ipaddress.ip_address(host)
    except ValueError:
        return not ipaddress.ip_address(address).is_unspecified
    return asked.is_unspecified or asked == ipaddress.ip_address(address)


def open_to_others(listeners: Sequence[Listener], port: int) -> bool:
    """Whether one of the sockets on ``port`` listens on more than loopback."""
    return any(one.port == port and not is_loopback(one.address) for one in listeners)
