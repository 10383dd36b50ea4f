"""Xid errors: the NVIDIA driver's fault numbers in the kernel log, and which of them mean a broken GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ErrorKind
from .facts import Finding

XID = ErrorKind(
    "gpu-host-xid",
    "The kernel log has a fault of a GPU since boot after which it must not be trusted without a reset. After a reset"
    " without a reboot the line stays: then put this code into gpu_host_tolerate.",
)

# Numbers whose immediate action is a reset, a reboot or an exchange, not just another start of the application.
# Sources: NVIDIA's Xid documentation (docs.nvidia.com/deploy/xid-errors) and operators' public lists; only numbers on
# which they agree. Not here: what an application causes or survives (13, 31, 43, 45, 63, 68, 69, 92, 94, 109).
FATAL = {
    46: "GPU stopped processing",
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    64: "a memory row could not be remapped",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained ECC error",
    119: "GPU system processor (GSP) does not answer",
    120: "GPU system processor (GSP) error",
    140: "unrecovered ECC error",
    143: "GPU initialisation failed",
    154: "recovery action needed",
}
# Xid 154 also tells that an action is no longer needed.
_RECOVERED = re.compile(r"to 0x0\b|\(None\)\s*$")
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<number>\d+)(?:, (?P<text>.*))?$")
_OFF_THE_BUS = re.compile(
    r"NVRM: GPU (?:at )?(?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)(?::| )\s*(?:GPU )?has fallen off the bus"
)
# The driver writes this when its module is loaded: whatever came before belongs to an earlier life.
_LOADED = re.compile(r"NVRM: loading NVIDIA UNIX")


@dataclass(frozen=True)
class Xid:
    """One line. number 0: fallen off the bus without an Xid. pci: as sysfs writes it, without the function."""

    number: int
    pci: str
    line: str

    @property
    def fatal(self) -> bool:
        if self.number == 154:
            return not _RECOVERED.search(self.line)
        return self.number == 0 or self.number in FATAL


def parse(lines: Sequence[str]) -> list[Xid]:
    """The Xids since the driver was loaded last, in the log's order."""
    found: list[Xid] = []
    for line in lines:
        if _LOADED.search(line):
            found = []
        match = _XID.search(line)
        if match:
            found.append(Xid(int(match["number"]), _address(match["pci"]), line.strip()))
            continue
        match = _OFF_THE_BUS.search(line)
        if match:
            found.append(Xid(0, _address(match["pci"]), line.strip()))
    return found


def check_xids(xids: Sequence[Xid]) -> list[Finding]:
    """One problem for all fatal faults, each number and GPU once, with the last line of it."""
    last = {(xid.pci, xid.number): xid for xid in xids if xid.fatal}
    # A recovery that was needed and is no longer takes its own Xid back.
    for xid in xids:
        if xid.number == 154 and not xid.fatal:
            last.pop((xid.pci, 154), None)
    if not last:
        return []
    numbers = sorted({xid.number for xid in last.values()})
    names = [
        f"Xid {number}: {FATAL[number]}" if number else "GPU has fallen off the bus" for number in numbers
    ]
    return [
        Finding(
            XID.error(
                f"GPU faults in the kernel log since the driver was loaded ({'; '.join(names)})",
                evidence=[xid.line for xid in last.values()],
                next="journalctl -k -g 'NVRM|Xid'; drain the host and reset the GPU or reboot. If it was reset since:"
                " gpu_host_tolerate: [gpu-host-xid]",
            )
        )
    ]


def _address(pci: str) -> str:
    """``0000:18:00`` from ``0000:18:00``, ``0000:18:00.0`` or ``00000000:18:00.0``."""
    domain, _, rest = pci.lower().partition(":")
    return f"{domain[-4:]}:{rest.partition('.')[0]}"
