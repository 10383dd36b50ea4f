"""Bring an instance's nftables chain, and the file that its unit loads at a start, to what is asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files import read_text, write_atomic
from ..instance.state import InstanceStore
from . import nft
from .ports import Ports
from .traffic import Closed, Table, chain_name, load_script, remove_table_script

FILE = "traffic.nft"
HEADER = "# Written by Aerie; the unit loads it before each start. Ports that are closed to other hosts.\n"


def traffic_file(store: InstanceStore) -> Path:
    """The file that the instance's unit loads before each start."""
    return store.root / FILE


def controlled(record: Mapping[str, Any]) -> bool:
    """Whether a spec's unit closes its rendezvous port."""
    return f"/{FILE}" in str(record.get("unit") or "")


class TrafficControl:
    """One call: the options of the module ``sglang_traffic``."""

    def __init__(self, settings: Mapping[str, Any], *, check: bool) -> None:
        self.settings = settings
        self.check = check
        self.store = InstanceStore(settings["state_dir"], settings["instance"])
        self.actions: list[str] = []

    def run(self) -> dict[str, Any]:
        """Look, change what differs, and return the module's result."""
        now, at_start = self._wanted()
        if self.settings["state"] == "absent" and not nft.NFT.exists():
            return self._result(Closed(), Closed())  # nothing can be closed there
        nft.require()
        self._write_file(at_start)
        if self.check:
            before = self._bring(now)
        else:
            with nft.locked():
                before = self._bring(now)
        return self._result(before, now)

    def _wanted(self) -> tuple[Closed, Closed]:
        """What shall be closed now, and from the unit's next start on."""
        record = self.store.spec(self.store.current())
        current = Ports.of(record) if record else None
        given_port, given_rendezvous = self.settings.get("port"), self.settings.get("rendezvous_port")
        port = given_port if given_port is not None else current.serving if current else 0
        rendezvous = (
            given_rendezvous if given_rendezvous is not None else current.rendezvous if current else 0
        )
        admitted = Closed.of([rendezvous])
        state = self.settings["state"]
        if state == "absent":
            return Closed(), admitted
        if state == "admitted":
            return admitted, admitted
        # The old server drains on the ports that it has, the new one starts on those that are asked for.
        old = [current.serving] if current else []
        old_rendezvous = [current.rendezvous] if current else []
        return Closed.of([rendezvous, *old_rendezvous], [port, *old]), Closed.of([rendezvous], [port])

    def _write_file(self, closed: Closed) -> None:
        path = traffic_file(self.store)
        text = HEADER + load_script(self.store.instance, closed)
        if read_text(path) == text or (not self.store.root.is_dir() and not self.check):
            return
        self.actions.append(f"write {path}")
        if self.check:
            return
        try:
            write_atomic(path, text)
        except OSError as error:  # a full disk must not leave a port closed that nobody serves any more
            if self.settings["state"] != "absent":
                raise
            self.actions.append(f"{path} could not be written: {error}")

    def _bring(self, wanted: Closed) -> Closed | None:
        """Change the live chain if it differs; returns what it held."""
        table = nft.read_table()
        name = chain_name(self.store.instance)
        before = table.closed(self.store.instance)
        left = name in table.chains or (table.exists and not table.chains)
        if before == wanted and (wanted or not left):
            return before
        self.actions.append(
            f"close {_ports(wanted)} to other hosts" if wanted else f"remove the chain {name}"
        )
        if not self.check:
            nft.load(self._script(table, wanted))
        return before

    def _script(self, table: Table, wanted: Closed) -> str:
        name = chain_name(self.store.instance)
        if not wanted and set(table.chains) <= {name}:
            return remove_table_script()
        return load_script(
            self.store.instance, wanted, anew=name in table.chains and table.chains[name] is None
        )

    def _result(self, before: Closed | None, after: Closed) -> dict[str, Any]:
        name = self.store.instance
        result: dict[str, Any] = {
            "changed": bool(self.actions),
            "actions": self.actions,
            "closed": {"rendezvous": sorted(after.rendezvous), "refused": sorted(after.refused)},
        }
        if before != after:
            shown = [f"{name}: a chain that Aerie did not write"] if before is None else before.lines(name)
            result["diff"] = {"before": _text(shown), "after": _text(after.lines(name))}
        return result


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _ports(closed: Closed) -> str:
    parts = [f"{port} (rendezvous)" for port in sorted(closed.rendezvous)]
    return ", ".join(parts + [f"{port} (serving)" for port in sorted(closed.refused)])
