"""Which ports of an instance are closed to other hosts, as one chain in the nftables table ``inet aerie``.

One table per host, one base chain per instance, so that instances never touch each other. A chain holds nothing but
"new connections from outside to this port are answered with a TCP reset". Loopback is always open.

New connections are told by their flags (SYN alone), not by ``ct state new``: where nothing has tracked connections so
far, the first tracked packet of an established one counts as new too and would be cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ErrorKind

NFT_UNREADABLE = ErrorKind(
    "nft-unreadable",
    "nft listed the table inet aerie in a form that Aerie cannot read; its version may be too new.",
)

FAMILY, TABLE = "inet", "aerie"
# Before the host's own filter (0), so that a rule there cannot accept first; accepting here decides nothing there.
PRIORITY = -10
NEW_CONNECTION = "tcp flags & (fin | syn | rst | ack) == syn"
RENDEZVOUS, REFUSED = "rendezvous", "refused"


@dataclass(frozen=True)
class Closed:
    """Ports that other hosts cannot open connections to.

    rendezvous: where torch's store listens for the server's own ranks, on every address and without a password.
    refused: serving ports, from the start of a drain until the gates have passed.
    """

    rendezvous: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()

    @classmethod
    def of(cls, rendezvous: Iterable[int] = (), refused: Iterable[int] = ()) -> Closed:
        """As the constructor; 0 stands for no port."""
        return cls(frozenset(rendezvous) - {0}, frozenset(refused) - {0})

    def __bool__(self) -> bool:
        return bool(self.rendezvous or self.refused)

    def lines(self, instance: str) -> list[str]:
        """As a person reads it, a line each; for diffs."""
        return [
            f"{instance}: port {port} closed to other hosts ({why})"
            for why, ports in ((RENDEZVOUS, self.rendezvous), (REFUSED, self.refused))
            for port in sorted(ports)
        ]


@dataclass(frozen=True)
class Table:
    """What the host's table holds: ``chains`` by name, None for a chain that is not as Aerie writes it.

    A unit's end leaves the table behind, empty after the last one's; ``exists`` tells that from none.
    """

    chains: Mapping[str, Closed | None]
    exists: bool = True

    def closed(self, instance: str) -> Closed | None:
        """What is closed for an instance: nothing when it has no chain, None when somebody changed its chain."""
        return self.chains.get(chain_name(instance), Closed())


NO_TABLE = Table({}, exists=False)


def chain_name(instance: str) -> str:
    """The chain of an instance: its unit's name without the suffix."""
    return f"sglang-{instance}"


def load_script(instance: str, closed: Closed, *, anew: bool = False) -> str:
    """Text for ``nft -f`` that makes the instance's chain hold just this, in one transaction.

    It can be loaded any number of times. anew: remove a chain first that hooks in somewhere else.
    """
    if not closed:
        return remove_script(instance)
    chain = f"{FAMILY} {TABLE} {chain_name(instance)}"
    lines = [f"add table {FAMILY} {TABLE}"]
    if anew:
        lines += [f"add chain {chain}", f"flush chain {chain}", f"delete chain {chain}"]
    lines.append(f"add chain {chain} {{ type filter hook input priority {PRIORITY}; policy accept; }}")
    lines.append(f"flush chain {chain}")
    lines.append(f'add rule {chain} iif "lo" accept')
    for why, ports in ((RENDEZVOUS, closed.rendezvous), (REFUSED, closed.refused)):
        for port in sorted(ports):
            match = f"tcp dport {port} {NEW_CONNECTION}"
            lines.append(f'add rule {chain} {match} reject with tcp reset comment "{why}"')
    return "\n".join(lines) + "\n"


def remove_script(instance: str) -> str:
    """Text for ``nft -f`` that removes the instance's chain, and succeeds when there is none."""
    chain = f"{FAMILY} {TABLE} {chain_name(instance)}"
    verbs = (
        f"add table {FAMILY} {TABLE}",
        f"add chain {chain}",
        f"flush chain {chain}",
        f"delete chain {chain}",
    )
    return "\n".join(verbs) + "\n"


def remove_table_script() -> str:
    """Text for ``nft -f`` that removes the table."""
    return f"delete table {FAMILY} {TABLE}\n"


def parse_table(text: str) -> Table:
    """Read the output of ``nft -j list table inet aerie`` ('' when there is no table).

    Raises nft-unreadable when it is not nft's JSON.
    """
    if not text.strip():
        return NO_TABLE
    try:
        items = json.loads(text)["nftables"]
        chains = {item["chain"]["name"]: item["chain"] for item in items if "chain" in item}
        rules: dict[str, list[dict[str, Any]]] = {name: [] for name in chains}
        for item in items:
            if "rule" in item:
                rules[item["rule"]["chain"]].append(item["rule"])
    except (ValueError, KeyError, TypeError) as error:
        raise NFT_UNREADABLE.error(
            f"the table {FAMILY} {TABLE} cannot be read: {error!r}",
            evidence=text.splitlines()[:5],
            next=f"nft list table {FAMILY} {TABLE}",
        ) from error
    return Table({name: _read_chain(chain, rules[name]) for name, chain in chains.items()})


def _read_chain(chain: Mapping[str, Any], rules: list[dict[str, Any]]) -> Closed | None:
    hooks_in = (chain.get("type"), chain.get("hook"), chain.get("prio"), chain.get("policy"))
    if hooks_in != ("filter", "input", PRIORITY, "accept") or not rules or not _is_loopback(rules[0]):
        return None
    found: dict[str, set[int]] = {RENDEZVOUS: set(), REFUSED: set()}
    for rule in rules[1:]:
        port, why = _rejected_port(rule), rule.get("comment")
        if port is None or why not in found:
            return None
        found[str(why)].add(port)
    return Closed.of(found[RENDEZVOUS], found[REFUSED])


def _is_loopback(rule: Mapping[str, Any]) -> bool:
    expressions = rule.get("expr") or []
    return expressions == [
        {"match": {"op": "==", "left": {"meta": {"key": "iif"}}, "right": "lo"}},
        {"accept": None},
    ]


def _rejected_port(rule: Mapping[str, Any]) -> int | None:
    """The port of a rule of ours; None for any other rule."""
    expressions = rule.get("expr") or []
    if len(expressions) != 3 or expressions[2] != {"reject": {"type": "tcp reset"}}:
        return None
    port = (expressions[0].get("match") or {}).get("right")
    wanted = {
        "match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": port}
    }
    if expressions[0] != wanted or not isinstance(port, int):
        return None
    flags = expressions[1].get("match") or {}
    if flags.get("op") != "==" or flags.get("right") != "syn":
        return None
    # nft 1.0.6 prints the mask as a list, others nest it: only the set of its words counts.
    words = set(_words(flags.get("left")))
    return port if words >= {"flags", "fin", "syn", "rst", "ack"} and words <= _FLAG_WORDS else None


_FLAG_WORDS = {"&", "|", "payload", "protocol", "field", "tcp", "flags", "fin", "syn", "rst", "ack"}


def _words(value: Any) -> list[str]:
    """All keys and texts in a piece of JSON."""
    if isinstance(value, Mapping):
        return [word for key, inner in value.items() for word in [key, *_words(inner)]]
    if isinstance(value, list):
        return [word for inner in value for word in _words(inner)]
    return [str(value)]
