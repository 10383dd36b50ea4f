"""Where the state of one checkout lies, and the names that its hosts use on the machine."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from .errors import HostsError

# The kernel's IFNAMSIZ is 16 with the closing zero byte.
INTERFACE_NAME_MAX = 15
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
SUITES = ("bookworm", "trixie")


def checkout_id(path: Path) -> str:
    """Six hex digits that tell checkouts on one machine apart; the same path gives the same digits."""
    return hashlib.sha256(str(path).encode()).hexdigest()[:6]


def valid_name(name: str, what: str = "host") -> str:
    """The name itself, when it can be a host name, a folder and a part of a mount option all at once.

    Raises HostsError otherwise. Colons and commas would break the overlay's option string.
    """
    if NAME.fullmatch(name):
        return name
    raise HostsError(
        f"{name!r} is no {what} name",
        evidence=["allowed: 1 to 32 lower-case letters, digits and inner hyphens"],
        next="choose another name",
    )


@dataclass(frozen=True)
class Layout:
    """Paths and names of one checkout."""

    checkout: Path

    @property
    def id(self) -> str:
        return checkout_id(self.checkout)

    @property
    def state(self) -> Path:
        return self.checkout / ".cache" / "hosts"

    @property
    def images(self) -> Path:
        return self.state / "images"

    @property
    def snapshots(self) -> Path:
        return self.state / "snapshots"

    @property
    def hosts(self) -> Path:
        return self.state / "hosts"

    @property
    def locks(self) -> Path:
        return self.state / "locks"

    @property
    def key(self) -> Path:
        return self.state / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.state / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        return self.state / "ssh_config"

    @property
    def bridge(self) -> str:
        return f"ah{self.id}"

    @property
    def cgroup(self) -> str:
        return f"aerie-hosts-{self.id}"

    def cable(self, octet: int) -> str:
        """Name of the machine's end of a host's cable. The octet is short and unique; a host name is neither."""
        return f"{self.bridge}-{octet}"

    def make(self) -> None:
        for folder in (self.images, self.snapshots, self.hosts, self.locks):
            folder.mkdir(parents=True, exist_ok=True)
