"""Keys, the ssh_config that inventories name, and a known_hosts file that the tool fills itself."""

from __future__ import annotations

from pathlib import Path

from .commands import run
from .files import write_text
from .layout import Layout
from .record import Host


def ensure_key(layout: Layout) -> str:
    """The public half of the checkout's key; made at first use."""
    if not layout.key.exists():
        run(
            [
                "ssh-keygen",
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-C",
                f"aerie-hosts-{layout.id}",
                "-f",
                str(layout.key),
            ]
        )
    return layout.key.with_suffix(".pub").read_text()


def ensure_host_key(folder: Path, name: str) -> str:
    """The public host key in ``folder`` (the host's /etc/ssh), made when it has none."""
    private = folder / "ssh_host_ed25519_key"
    public = folder / "ssh_host_ed25519_key.pub"
    if not private.exists():
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"root@{name}", "-f", str(private)])
    return " ".join(public.read_text().split()[:2])


def known_hosts_text(hosts: list[Host]) -> str:
    return "".join(f"{host.ip},{host.name} {host.host_key}\n" for host in hosts if host.host_key)


def config_text(layout: Layout, hosts: list[Host]) -> str:
    """A block per host, so that its name works as a host name, then what all share. With ``ssh -F`` nothing else is
    read.

    ``NAME.anything`` works too: Ansible names its kept connections after the host name alone, so two checkouts that
    both have a host ``demo`` need different names for it, or one would talk to the other's.
    """
    blocks = [f"Host {host.name} {host.name}.*\n  HostName {host.ip}\n" for host in hosts]
    shared = f"""\
Host *
  User root
  IdentityFile "{layout.key}"
  IdentitiesOnly yes
  StrictHostKeyChecking yes
  UserKnownHostsFile "{layout.known_hosts}"
  GlobalKnownHostsFile /dev/null
  UpdateHostKeys no
  ConnectTimeout 10
"""
    return "# Written by tests/hosts/hosts; changes are lost.\n" + "".join(blocks) + shared


def write_files(layout: Layout, hosts: list[Host]) -> None:
    """The caller holds the checkout's lock."""
    write_text(layout.known_hosts, known_hosts_text(hosts))
    write_text(layout.ssh_config, config_text(layout, hosts))
