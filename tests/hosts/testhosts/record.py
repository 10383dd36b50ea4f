"""What is written down about a host, and the state that follows from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .files import read_json, write_json
from .layout import Layout
from .processes import Identity


@dataclass
class Host:
    """A host. ``layers`` are read-only folders relative to the state folder, topmost first, the image's root last.

    ``owner`` is the command that is working on the host (up, snapshot); ``ready`` is set once ssh has answered.
    """

    name: str
    octet: int
    ip: str
    gateway: str
    suite: str
    layers: list[str]
    snapshot: str | None = None
    binds: list[str] = field(default_factory=list)
    cgroups: str = "unified"
    host_key: str = ""
    ready: bool = False
    owner: dict[str, Any] | None = None

    def folder(self, layout: Layout) -> Path:
        return layout.hosts / self.name

    def save(self, layout: Layout) -> None:
        write_json(self.folder(layout) / "host.json", asdict(self))

    def supervisor(self, layout: Layout) -> Identity | None:
        return Identity.parse(read_json(self.folder(layout) / "supervisor.json"))

    def init(self, layout: Layout) -> Identity | None:
        """The host's pid 1 as the machine sees it."""
        return Identity.parse(read_json(self.folder(layout) / "init.json"))

    def off_marker(self, layout: Layout) -> Path:
        """Written by the supervisor when the host has powered itself off, so its disk is worth keeping."""
        return self.folder(layout) / "off"

    def owner_alive(self) -> bool:
        owner = Identity.parse(self.owner)
        return owner is not None and owner.alive()

    def state(self, layout: Layout) -> str:
        """running, booting, off or dead."""
        supervisor = self.supervisor(layout)
        if self.off_marker(layout).exists():
            return "off"
        if supervisor is not None and supervisor.alive():
            return "running" if self.ready else "booting"
        return "booting" if self.owner_alive() else "dead"


def load(layout: Layout, name: str) -> Host | None:
    value = read_json(layout.hosts / name / "host.json")
    try:
        return Host(**value)
    except TypeError:
        return None


def load_all(layout: Layout) -> list[Host]:
    if not layout.hosts.is_dir():
        return []
    found = (
        load(layout, entry.name) for entry in sorted(layout.hosts.iterdir()) if not entry.name.startswith(".")
    )
    return [host for host in found if host is not None]
