#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Wait until an SGLang instance is ready or stopped, showing how far it is."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_server_wait
short_description: Wait until an SGLang instance is ready or stopped, showing how far it is
description:
  - The module itself looks once and returns at once. The action plugin of the same name repeats that look over
    short connections, prints what changes, and ends when the goal is reached, can no longer be reached, or
    O(timeout) has passed. So a dropped connection costs nothing and a person sees progress.
  - Ready means that the unit is active, a process of its own cgroup holds the port, and C(/health) answers 200. The
    log's "ready to roll" is no proof, since SGLang prints it after a warm-up that a stranger on the port answered.
options:
  until:
    description: What to wait for.
    type: str
    choices: [ready, stopped]
    default: ready
  instance:
    description: Name of the instance.
    type: str
    default: default
  host:
    description: Address that the server listens on.
    type: str
    default: 127.0.0.1
  port:
    description: Port that the server listens on.
    type: int
    default: 30000
  state_dir:
    description: Directory of all instances' state.
    type: path
    default: /var/lib/sglang
  timeout:
    description: Seconds to wait at most. Read by the action plugin.
    type: int
    default: 1800
  cursor:
    description: Where in the journal to read on. Set by the action plugin.
    type: str
    default: ''
  phase:
    description: Phase that was seen last. Set by the action plugin.
    type: str
    default: ''
  hold:
    description:
      - Seconds that one call may look again and again before it answers; it answers at once when it is over, and after
        three when it has something new to tell. Set by the action plugin.
    type: float
    default: 0
  told:
    description: What was told last. Set by the action plugin.
    type: str
    default: ''
  announce:
    description:
      - With O(until=ready), a file to write the server's main pid to at the moment when it is ready, for a measurement
        that waits on the host (M(sglang_accept_rate) with V(armed)).
    type: path
  lease:
    description: Token of the lease that M(sglang_lease) gave; a long wait renews it, and ends when it is lost.
    type: str
attributes:
  check_mode:
    support: full
    description: Looks once and does not wait.
  diff_mode:
    support: none
    description: Nothing is changed.
  idempotent:
    support: full
    description: Only looks.
  platform:
    support: full
    description: Linux with systemd.
    platforms: posix
author:
  - Aerie (@aerie)
"""

EXAMPLES = r"""
- name: Wait for the server
  sglang_server_wait:
    until: ready
    port: 30000
    timeout: 900
"""

RETURN = r"""
done:
  description: The goal is reached.
  type: bool
  returned: always
phase:
  description: How far the server is.
  type: str
  returned: always
cursor:
  description: Where the next look reads on in the journal.
  type: str
  returned: always
announced:
  description: The server's main pid was written to O(announce).
  type: bool
  returned: always
lease:
  description: The option, to tell this run's results from another's.
  type: str
  returned: always
waited_s:
  description: Seconds that were waited.
  type: float
  returned: always
"""

import time
from dataclasses import replace
from pathlib import Path

from ansible.module_utils.aerie import health, systemd
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.files import write_atomic
from ansible.module_utils.aerie.instance import lease_host, reality, startup
from ansible.module_utils.aerie.instance.state import InstanceStore
from ansible.module_utils.basic import AnsibleModule

# Pause between two looks of one call. A look starts systemctl and journalctl, and a start needs the processor: until
# the scheduler is ready, nothing can be missed, and from then on only /health is asked for a while, which is cheap.
PAUSE_S = 0.3
LOADING_PAUSE_S = 1.0
HEALTH_PAUSE_S = 0.1
HEALTH_S = 1.0
LATE = ("scheduler ready", "HTTP is up, warming up", "fired up")
# What is new is told no sooner: an answer ends the call, and until the next one nobody looks.
TELL_S = 3.0


def look(params: dict) -> tuple[dict, AerieError | None]:
    """One look: the result, and the error that ends the wait if there is one."""
    store = InstanceStore(params["state_dir"], params["instance"])
    if params["lease"]:
        lease_host.renew(store, params["lease"])
    host, port = params["host"], params["port"]
    ready = params["until"] == "ready"
    answered = ready and params.get("answered")
    seen = reality.look(store, host, port, ask_health=ready and not answered, timeout=8.0)
    if answered and seen.owns_port:
        seen = replace(seen, health="ok")
    part = systemd.journal(store.unit_name, invocation=seen.unit.invocation, after=params["cursor"])
    phase = startup.phase_of(part.lines, params["phase"])
    if ready:
        tail = systemd.journal(store.unit_name, last=25).lines if startup.ended(seen.unit) else []
        verdict = startup.judge_start(seen, tail, phase, strangers(seen))
    else:
        verdict = startup.judge_stop(seen, still_to_do(store, seen, host, port))
    result = {
        "changed": False,
        "done": verdict.done,
        "phase": phase if ready else verdict.text,
        "text": verdict.text,
        "cursor": part.cursor,
        "waited_s": 0.0,
        "lease": params["lease"] or "",
        "unit": f"{seen.unit.active}/{seen.unit.sub}",
        "pid": seen.unit.main_pid,
    }
    return result, verdict.error


# What is imported is compiled anew at each call on the host, and a server that starts needs its processor.


def strangers(seen: reality.Reality) -> list[str]:
    """Who holds the port without being of the unit, a line each."""
    if not seen.strangers:
        return []
    from ansible.module_utils.aerie.strangers import holders

    return holders.lines(seen.listener, seen.members)


def still_to_do(store: InstanceStore, seen: reality.Reality, host: str, port: int) -> str:
    """What a server that drains has left, where it can be asked; else ''."""
    spec = store.spec(seen.running) if seen.owns_port else None
    if not spec:
        return ""
    from ansible.module_utils.aerie.instance import drain
    from ansible.module_utils.aerie.instance.overview import api_key

    return str(drain.load_of(spec, host, port, api_key(store, seen.running)))


def answers_soon(host: str, port: int) -> bool:
    """Whether /health answers 200 within a moment. Who answered, the next look has to say."""
    until = time.monotonic() + HEALTH_S
    while True:
        if health.get(host, port, "/health", timeout=8.0).ok:
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(HEALTH_PAUSE_S)


def announced(path: str, pid: int) -> bool:
    """Tell a measurement that waits for it that the server is ready. False: nobody waits, or it cannot be told."""
    try:
        write_atomic(Path(path), str(pid), mode=0o600)
    except OSError:
        return False
    return True


def watch(params: dict) -> tuple[dict, AerieError | None]:
    """Look until the end is seen, for ``hold`` seconds, or for TELL_S when there is something new to tell."""
    began = time.monotonic()
    while True:
        result, error = look(params)
        ready = params["until"] == "ready"
        late = ready and result["phase"] in LATE  # it is over in a moment
        news = not late and result["text"] != params["told"]
        limit = min(TELL_S, params["hold"]) if news else params["hold"]
        if result["done"] or error or time.monotonic() - began >= limit:
            return result, error
        params = {**params, "cursor": result["cursor"], "phase": result["phase"], "answered": False}
        if late and params["hold"]:
            params["answered"] = answers_soon(params["host"], params["port"])
        else:
            time.sleep(LOADING_PAUSE_S if ready else PAUSE_S)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "until": {"type": "str", "choices": ["ready", "stopped"], "default": "ready"},
            "instance": {"type": "str", "default": "default"},
            "host": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "default": 30000},
            "state_dir": {"type": "path", "default": "/var/lib/sglang"},
            "timeout": {"type": "int", "default": 1800},
            "cursor": {"type": "str", "default": ""},
            "phase": {"type": "str", "default": ""},
            "hold": {"type": "float", "default": 0},
            "told": {"type": "str", "default": ""},
            "announce": {"type": "path"},
            "lease": {"type": "str"},
        },
        supports_check_mode=True,
    )
    try:
        result, error = watch({**module.params, "hold": 0} if module.check_mode else module.params)
    except AerieError as problem:
        module.fail_json(**problem.as_result())
    told = result["done"] and not error and module.params["announce"] and not module.check_mode
    result["announced"] = bool(told) and announced(module.params["announce"], result["pid"])
    if error is not None and not module.check_mode:
        module.fail_json(**{**result, **error.as_result()})
    module.exit_json(**result)


if __name__ == "__main__":
    main()
