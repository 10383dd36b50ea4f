"""What a change of the host's default environment (``gpu_host_nccl_env``) does to the instances of the host.

Each acceptance keeps the defaults of its day beside the figures, so a later run can tell a value that came from the
host from one that the instance set itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import state
from .arguments import text_of
from .state import InstanceStore

KEY = "host_environment"


def texts(environment: Mapping[str, Any] | None) -> dict[str, str]:
    """Values as a process would have them; a value of None is not set at all."""
    return {str(name): text_of(value) for name, value in (environment or {}).items() if value is not None}


def changes(before: Mapping[str, str], after: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """How new defaults change an instance, a line a variable; a value of the instance's own hides the default.

    before: the defaults at its acceptance; environment: what its server was started with.
    """
    lines = []
    for name in sorted(set(before) | set(after)):
        has, old, new = environment.get(name), before.get(name), after.get(name)
        if has != old or new == old:
            continue  # its own value wins, or nothing changed
        lines.append(f"{name} {'(not set)' if old is None else old} -> {'(not set)' if new is None else new}")
    return lines


def of_instance(store: InstanceStore, defaults: Mapping[str, str]) -> list[str]:
    """:func:`changes` of the instance's current deployment; nothing where its acceptance kept no defaults."""
    digest = store.current()
    entry = next((one for one in store.load().history if one.get("digest") == digest), {})
    kept, spec = entry.get(KEY), store.spec(digest)
    if not isinstance(kept, dict) or spec is None:
        return []
    return changes(kept, defaults, spec.get("environment") or {})


def also_affected(store: InstanceStore, defaults: Mapping[str, str]) -> list[str]:
    """The host's other instances that will restart on their next run, a line each."""
    base = str(store.root.parent)
    found = []
    for name in state.instances(base):
        lines = [] if name == store.instance else of_instance(InstanceStore(base, name), defaults)
        if lines:
            found.append(
                f"gpu_host_nccl_env also affects instance {name}, which restarts on its next run: "
                + ", ".join(lines)
            )
    return found
