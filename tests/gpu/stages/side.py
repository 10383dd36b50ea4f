"""Small instances side by side on one card: an inventory of their own over the same host, and warm compile caches.

Each is an instance like any other, with unit, port, state and gates of its own; what they share is the card, which
`gpu_host_free_neighbours` allows. Their inventory comes second, so that group_vars of the first hold for them too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from record import RELEASE, RUN, SIDE_CARD, ssh

from .core import Context, Outcome, Step, inventories

# With the rendezvous ports, a thousand above, below 32768, where Linux begins to give ports to connections: of thirteen
# starts at once three found theirs taken, on the H200.
FIRST_PORT = 30500
# What the driver does not attribute to a process: 10 MiB for one server, 29 for four (samples/nvml.jsonl).
CONTEXT_MIB = 16


@dataclass(frozen=True)
class Instance:
    """One instance. ``number`` gives its port; ``variables`` beat the group's."""

    name: str
    number: int
    variables: dict[str, Any] = field(default_factory=dict)

    @property
    def host(self) -> str:
        return f"gpu-{self.name}"

    @property
    def port(self) -> int:
        return FIRST_PORT + self.number

    @property
    def unit(self) -> str:
        return f"sglang-{self.name}.service"


def neighbours(count: int) -> dict[str, Any]:
    """What lets an instance share its card with ``count`` others of Aerie's."""
    return {
        "gpu_host_free_neighbours": ["sglang-*.service"],
        "gpu_host_free_tolerance_mib": CONTEXT_MIB * (count + 1),
    }


def inventory(instances: Iterable[Instance]) -> dict[str, Any]:
    """The second inventory: one Ansible host an instance, all the same machine (`Host gpu-*` of ssh_config)."""
    listed = list(instances)
    hosts = {
        one.host: {
            "sglang_server_instance": one.name,
            "sglang_server_port": one.port,
            "sglang_server_rendezvous_port": one.port + 1000,
            **neighbours(len(listed)),
            **({"sglang_server_gpus": [SIDE_CARD]} if SIDE_CARD else {}),
            **one.variables,
        }
        for one in listed
    }
    return {"sglang": {"hosts": hosts}}


def write(name: str, instances: Iterable[Instance]) -> str:
    """Write the inventory; returns its path."""
    path = RUN / f"side-{name}.yml"
    path.write_text(json.dumps(inventory(instances), indent=1))
    return str(path)


def playbook(book: str, inventory_path: str, hosts: Iterable[str], **variables: Any) -> list[str]:
    """A playbook against some of the side instances, all at the same time."""
    words = ["ansible-playbook", *inventories(inventory_path), book]
    words += ["--limit", ",".join(hosts), "--forks", "16"]
    return words + (["-e", json.dumps(variables, sort_keys=True)] if variables else [])


def seed_script(names: Iterable[str], source: str = "default") -> str:
    """Shell: give instances the compile caches of another. Triton's group files hold absolute paths, so these are
    written anew; without it each instance would compile for a minute, all at once."""
    lines = ["set -e"]
    for name in names:
        old, new = f"/var/cache/sglang/{source}/{RELEASE}", f"/var/cache/sglang/{name}/{RELEASE}"
        lines += [
            f"if [ -d {old} ] && [ ! -d {new} ]; then",
            f"  mkdir -p {new} && cp -a {old}/. {new}/",
            f"  grep -rlZ --include='*.json' -F {old} {new} | xargs -0 -r sed -i 's#{old}#{new}#g'",
            f"  chown -R sglang:sglang /var/cache/sglang/{name}",
            "fi",
        ]
    return "\n".join([*lines, "echo seeded"])


def seed(names: Iterable[str], source: str = "default") -> str | None:
    """Warm the caches; returns why not."""
    said = ssh(seed_script(names, source), 60)
    return None if said.endswith("seeded") else f"caches were not copied: {said[-300:]}"


def clear(context: Context) -> Outcome:
    """Stop every side instance that a step which was cut short left behind: it would hold its card for those after."""
    others = (
        "systemctl list-units --plain --no-legend 'sglang-*.service' | cut -d' ' -f1 | "
        "grep -v ^sglang-default.service"
    )
    found = ssh(others, 20).split()
    if found:
        ssh(f"systemctl stop {' '.join(found)}; systemctl reset-failed {' '.join(found)}; echo done", 60)
    left = ssh(f"systemctl is-active $({others}) 2>/dev/null | grep -c ^active", 20) if found else "0"
    return Outcome(None if left == "0" else f"{left} of {found} still run", {"stopped": found})


CLEAR = Step("clear", 15, "side instances that an earlier step left behind are stopped", clear)
