"""Calls of ``nft`` for the table ``inet aerie``. What to load is decided in :mod:`traffic`."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ErrorKind
from .traffic import FAMILY, NO_TABLE, TABLE, Table, parse_table

NFT_MISSING = ErrorKind(
    "nft-missing",
    "Closing ports to other hosts needs the program nft, which is not on the host. Without it the server's rendezvous "
    "port is open to other hosts, and clients reach a server whose gates have not passed.",
)
NFT_FAILED = ErrorKind("nft-failed", "nft refused a step; its own words are in the evidence.")

# The unit names the same path: systemd takes no PATH.
NFT = Path("/usr/sbin/nft")
# The unit takes it too when it loads its chain.
LOCK = Path("/run/aerie-nft.lock")


def require() -> None:
    """Raise nft-missing when the host has no nft."""
    if not NFT.exists():
        raise NFT_MISSING.error(
            f"{NFT} is not on the host",
            next="apt-get install nftables   # or set sglang_server_traffic_control: false",
        )


def _nft(*words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    return subprocess.run(
        [str(NFT), *words],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )


def read_table() -> Table:
    """What the table holds now; an empty one when there is none. Raises nft-missing, nft-failed, nft-unreadable."""
    require()
    done = _nft("-j", "list", "table", FAMILY, TABLE)
    if done.returncode == 0:
        return parse_table(done.stdout)
    if "No such file or directory" in done.stderr:
        return NO_TABLE
    raise NFT_FAILED.error(
        f"nft cannot list the table {FAMILY} {TABLE}",
        evidence=done.stderr.splitlines()[:10],
        next="nft list ruleset   # as root, on the host; a kernel without nf_tables refuses it",
    )


def load(script: str) -> None:
    """Load a script as one transaction: all of it or nothing. Raises nft-failed."""
    done = _nft("-f", "-", text=script)
    if done.returncode != 0:
        raise NFT_FAILED.error(
            "nft refused a change; nothing was changed",
            evidence=[*done.stderr.splitlines()[:10], *script.splitlines()],
            next=f"nft list table {FAMILY} {TABLE}",
        )


@contextmanager
def locked() -> Iterator[None]:
    """Hold the host's lock around look and change: "the last chain is gone" must not be true for two at a time."""
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
