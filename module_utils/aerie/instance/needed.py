"""What a plan holds. Apart from how it is made (``plan``): every step returns one, and only the first makes one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Plan:
    """The steps that are needed, and why, as a person would say it."""

    digest: str
    build: bool = False
    restart: bool = False
    # Only what the unit says to systemd about the next start or stop.
    unit: bool = False
    gates: bool = False
    # A server that was accepted is measured again: by another floor or more requests, or since it was restarted.
    measure_again: bool = False
    # With ``unit``: systemd is to count its own restarts from here on, so that one during the gates is seen.
    recount: bool = False
    enable: bool = False
    traffic: bool = False
    reasons: list[str] = field(default_factory=list)
    # Trees of strangers that a person allowed to be stopped: {token: pid:start time, text}.
    takeover: list[dict[str, Any]] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        needed = self.build or self.restart or self.unit or self.gates or self.enable or self.traffic
        return needed or bool(self.takeover)
