#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Build, start, stop and record deployments of an SGLang instance."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_deployment
short_description: Build, start, stop and record deployments of an SGLang instance
description:
  - A deployment is everything that decides how an instance runs (its spec), made into a directory on the host and
    named by the digest of the spec. It is built aside while the old server still serves, then switched to.
  - Every state takes the same options; give them once with C(module_defaults). The module works out the same spec
    each time, so a step never acts on anything but what the plan was made for.
options:
  state:
    description:
      - V(planned) compares the spec with the record and with what runs, refuses what cannot work, changes nothing.
      - V(built) makes the deployment's directory.
      - V(stopped) asks systemd to stop the unit. It waits only for a server with nothing to drain, some seconds. With
        O(disable) also not started at boot; of a unit that has stopped already what it left in C(/dev/shm) is removed
        then.
      - V(started) makes the deployment current, writes the unit and asks systemd to start it; it does not wait. It
        refuses when the unit runs, since somebody has started it after the plan.
      - V(rewritten) writes the unit and the record of a server that runs on, where only lines differ that need no
        restart (how it is stopped or started again), and has systemd read it.
      - V(accepted) is the end of the gates. With O(check_sockets) it refuses sockets that nobody asked for, admits
        connections to O(admit), records that the gates passed, enables the unit at boot, removes deployments beyond
        O(keep).
      - V(failed) records O(failure), stops the unit and says which accepted deployment can be gone back to.
    type: str
    choices: [planned, built, stopped, started, rewritten, accepted, failed]
    default: planned
  instance:
    description: Name of the instance; part of unit and path names.
    type: str
    default: default
  mode:
    description: What the instance is for.
    type: str
    choices: [production, baseline, debug, profile]
    default: production
  debug_cuda_graphs:
    description: With O(mode=debug), leave CUDA graphs on. Then a probe sees prefill and the capture, not the replays.
    type: bool
    default: false
  patches:
    description:
      - Source patches for the deployment's copy of the package, whole entries as the filter
        C(sglang_patch_entries) gives them. Those whose range holds the release are part of the spec.
    type: list
    elements: dict
    default: []
  release:
    description: The installed release, as the module M(sglang_release) returns it. Empty when it is not installed yet.
    type: dict
    default: {}
  model_path:
    description: Directory of the target model on the host.
    type: str
  draft_model_path:
    description: Directory of the draft model on the host.
    type: str
  draft_layer_ids:
    description:
      - Layer ids that the draft is to be served with, for example V([3, 31, 59]). With O(state=planned) and
        O(training_layers) they are worked out; the other states take what RV(draft_layer_ids) said.
      - Where the draft's C(config.json) says otherwise, the deployment gets a directory with links to the draft's
        files and a C(config.json) of its own with these ids. The draft itself is never written to.
      - Empty, or with another algorithm than EAGLE3, the draft is served as it is.
    type: list
    elements: int
    default: []
  training_layers:
    description:
      - With O(state=planned), the layers on whose outputs the draft was trained. The draft is then judged as
        M(sglang_draft_check) does, for the release that O(release) names, and all its problems fail the module.
    type: list
    elements: int
    default: []
  accept_draft_problems:
    description: Codes of problems of the draft that are meant so. They become warnings.
    type: list
    elements: str
    default: []
  host:
    description: Address that the server listens on.
    type: str
    default: 127.0.0.1
  port:
    description: Port that the server listens on.
    type: int
    default: 30000
  rendezvous_port:
    description: Port that the server's own processes meet on; 0 takes O(port) + 1000 or the nearest that suits.
    type: int
    default: 0
  traffic_control:
    description: Whether ports are closed to other hosts by M(sglang_traffic), so that the plan looks at that too.
    type: bool
    default: false
  speculative:
    description: C(algorithm), C(num_steps), C(eagle_topk), C(num_draft_tokens); empty for none.
    type: dict
    default: {}
  max_running_requests:
    description: Limit of concurrent requests.
    type: int
  arguments:
    description: Further server arguments by flag name.
    type: dict
    default: {}
  environment:
    description: Further variables for the server's environment.
    type: dict
    default: {}
  host_environment:
    description:
      - The host's default environment of every instance. It is a part of O(environment) already; here it is only kept
        with the acceptance, so that a run can name the other instances of the host that a change of it will restart.
    type: dict
    default: {}
  required_environment:
    description:
      - Variables that the host requires of every server today; null for any value. They are a part of O(environment)
        already; here they keep a recorded deployment that lacks one from being gone back to.
    type: dict
    default: {}
  api_key:
    description: Key that clients must send. Reaches the server in a file that only root and its group can read.
    type: str
  admin_api_key:
    description: Key for administrative endpoints.
    type: str
  unit_template:
    description: Text of the systemd unit with the placeholders C(@COMMAND@), C(@ENVIRONMENT@) and C(@EXIT_STATUS@).
    type: str
  user:
    description: User that the server runs as.
    type: str
    default: sglang
  group:
    description: Group that the server runs as.
    type: str
    default: sglang
  state_dir:
    description: Directory of all instances' state.
    type: path
    default: /var/lib/sglang
  cache_dir:
    description: Directory that the server may write its compile caches to.
    type: path
  takeover:
    description:
      - Servers that a person started by hand and that may be stopped when they are in the way, each V(PID:START) as
        the refusal printed it. See M(sglang_takeover), which stops them; V(planned) only names them.
    type: list
    elements: str
    default: []
  gpu_look:
    description:
      - "How the plan looks for holders of the instance's GPUs before it stops anything: V(gpus), V(expected_count),
        V(neighbours) and V(tools_dir), as M(gpu_memory_zero) takes them. Empty: it does not look."
    type: dict
    default: {}
  start_timeout:
    description: Seconds that a start may take.
    type: int
    default: 1800
  stop_timeout:
    description: Seconds that systemd gives the unit to stop, also one that was started with another time. 0 as it is.
    type: int
    default: 0
  gate:
    description:
      - What the gates are asked today, kept with the acceptance. A server that was accepted with less is measured again
        without a restart. V(min_accept_length), V(soak_requests), V(agreement_margin), V(prompts), V(max_new_tokens),
        V(prompts_file), V(chat_template).
    type: dict
    default: {}
  keep:
    description: How many deployments to keep besides the current one.
    type: int
    default: 2
  disable:
    description: With O(state=stopped), do not start the unit at boot either.
    type: bool
    default: false
  gates:
    description: With O(state=accepted), the figures that the gates measured, kept in the record.
    type: dict
    default: {}
  check_sockets:
    description: With O(state=accepted), refuse a server that listens where nothing asked it to.
    type: bool
    default: false
  admit:
    description:
      - With O(state=accepted), ports to which new connections come in again, C(port) and C(rendezvous_port) as
        M(sglang_traffic) takes them. Empty where no port is controlled.
    type: dict
    default: {}
  failure:
    description: With O(state=failed), what failed (V(step), V(code), V(message)), kept in the record.
    type: dict
    default: {}
  failed_digest:
    description: With O(state=failed), the digest of the deployment that failed.
    type: str
  digest:
    description:
      - Act on this recorded deployment, by its own record and what is in its directory, instead of on the other
        options. V(previous) is the one that was accepted before the last; after a rollback to it, that one again.
    type: str
  rollback:
    description: With O(state=accepted), note in the record that a person went back to it, and from which.
    type: bool
    default: false
  lease:
    description:
      - Token of the lease that the plan took (O(claim)), or M(sglang_lease) gave. A state that changes something
        checks it under a lock, and without one works only while nobody holds a lease.
    type: str
  claim:
    description:
      - With O(state=planned), take the lease when there is something to do, and compare once more under it. What is
        returned then is the second plan. Without anything to do no lease is taken; check mode takes none.
    type: dict
    suboptions:
      ttl:
        description: Seconds from its owner's last step to its expiry.
        type: int
        default: 900
      override:
        description: Token of a lease that a person takes by force.
        type: str
      controller:
        description: The run that asks. The action plugin fills it in.
        type: dict
        default: {}
      dead:
        description: Token of a lease whose owner the controller knows to be dead. The action plugin fills it in.
        type: str
  last:
    description: With O(state=accepted), give the lease back, since nothing comes after it.
    type: bool
    default: false
  refuse:
    description:
      - With O(state=started), first refuse new connections from other hosts as M(sglang_traffic) does, with its options
        V(port) and V(rendezvous_port). For an instance of which nothing runs, so that nothing had to be drained before.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Takes the same path and leaves out the writes.
  diff_mode:
    support: full
    description: Shows the unit file, which holds arguments and environment but no secret.
  idempotent:
    support: full
    description: A second call with the same options changes nothing.
  platform:
    support: full
    description: Linux with systemd.
    platforms: posix
author:
  - Aerie (@aerie)
"""

EXAMPLES = r"""
- name: Compare what is asked with what runs
  sglang_deployment:
    state: planned
    release: "{{ sglang_install_result }}"
    model_path: /data/models/target
    draft_model_path: /data/models/draft
    speculative: {algorithm: EAGLE3, num_steps: 2, eagle_topk: 1, num_draft_tokens: 3}
    unit_template: "{{ lookup('ansible.builtin.template', 'sglang.service.j2') }}"
    cache_dir: /var/cache/sglang/default
"""

RETURN = r"""
digest:
  description: Digest of the spec. Empty when the release is not installed yet, and for one with API keys as long as
    the host has no salt to hash them with, which the lease makes.
  type: str
  returned: always
plan:
  description: "What is needed: V(build), V(restart), V(unit), V(gates), V(enable), V(changed), and the V(reasons)."
  type: dict
  returned: always
summary:
  description: The plan in one line a step.
  type: list
  elements: str
  returned: always
actions:
  description: What was done, or would be done in check mode.
  type: list
  elements: str
  returned: always
running:
  description: >-
    The live server: V(pid), V(age_s), V(digest), V(health), V(unit), and V(ended) when unit and cgroup are empty.
  type: dict
  returned: always
elapsed_s:
  description: Seconds that this step took on the host.
  type: float
  returned: always
accepted:
  description: The record of the acceptance of this very deployment, with its gates' figures; empty if there is none.
  type: dict
  returned: with O(state=planned)
gated:
  description: What the gates have to know of the server, from its record.
  type: dict
  returned: with O(state=planned)
ended:
  description: The unit is stopped and has no process left, so there is nothing to wait for any more.
  type: bool
  returned: with O(state=stopped)
candidates:
  description: The accepted deployments that the host remembers, and what keeps each from being started (V(missing)).
  type: list
  elements: dict
  returned: with O(state=failed), and with O(state=planned) and O(digest)
failure:
  description: The option, for who comes later.
  type: dict
  returned: with O(state=failed)
lease:
  description:
    - The option, to tell this run's results from another's. With O(state=planned) the token of the lease that was taken
      (O(claim)), empty when none was.
  type: str
  returned: always
released:
  description: Whether the lease was given back.
  type: bool
  returned: with every state that changes something, but not in check mode
mode:
  description: What the planned deployment is for.
  type: str
  returned: with O(state=planned)
release:
  description: Its release of SGLang, empty when it is not known yet.
  type: str
  returned: with O(state=planned)
traffic_control:
  description: Whether the deployment's ports are closed by M(sglang_traffic).
  type: bool
  returned: with O(state=planned)
debug_record:
  description: Debug mode has left a record on the host, for M(sglang_accept_agreement) to compare with.
  type: bool
  returned: with O(state=planned)
back_to:
  description: The digest of the deployment to go back to, empty when there is none.
  type: str
  returned: with O(state=failed)
url:
  description: Where this host reaches the server.
  type: str
  returned: with O(state=planned)
ports:
  description: V(serving) and V(rendezvous) port; the latter 0 when SGLang chooses it or no release is there yet.
  type: dict
  returned: with O(state=planned)
draft:
  description: What M(sglang_draft_check) returns about the draft; empty where there was nothing to judge.
  type: dict
  returned: with O(state=planned)
draft_layer_ids:
  description: The layer ids that the deployment serves; empty for those that the draft's own config names.
  type: list
  elements: int
  returned: with O(state=planned)
served:
  description:
    - Where the deployment's own package (V(site_packages)) and the draft that it serves (V(draft), empty without one)
      lie, the file with its API keys (V(key_file), empty without any), and the directory that its probes write to
      (V(events), empty without any).
    - Empty when the release is not installed yet.
  type: dict
  returned: always
soak:
  description: Requests that the next gates must see answered in all, because SIGKILL ended the server before; else 0.
  type: int
  returned: always
environment:
  description: Variables that the accept-rate module needs to look at the deployment (its import path).
  type: dict
  returned: always
"""

from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance.deployer import run
from ansible.module_utils.aerie.instance.host_errors import host_error
from ansible.module_utils.aerie.instance.mode import MODES
from ansible.module_utils.basic import AnsibleModule


def told_of(params: dict, code: str) -> dict:
    """What the controller has to know of a failure: whose lease it was that was asked for, and whose start it was that
    may have begun (``code``: the error's)."""
    if params.get("claim"):
        from ansible.module_utils.aerie.instance import lease_host
        from ansible.module_utils.aerie.instance.state import InstanceStore

        found = lease_host.read(InstanceStore(params["state_dir"], params["instance"]))
        return {"owner": found.as_dict() if found else {}}
    begun = params["state"] == "started" and code != "started-meanwhile"
    return {"lease": params.get("lease") or ""} if begun else {}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["planned", "built", "stopped", "started", "rewritten", "accepted", "failed"],
                "default": "planned",
            },
            "instance": {"type": "str", "default": "default"},
            "mode": {"type": "str", "choices": list(MODES), "default": "production"},
            "debug_cuda_graphs": {"type": "bool", "default": False},
            "patches": {"type": "list", "elements": "dict", "default": []},
            "release": {"type": "dict", "default": {}},
            "model_path": {"type": "str"},
            "draft_model_path": {"type": "str"},
            "draft_layer_ids": {"type": "list", "elements": "int", "default": []},
            "training_layers": {"type": "list", "elements": "int", "default": []},
            "accept_draft_problems": {"type": "list", "elements": "str", "default": []},
            "host": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "default": 30000},
            "rendezvous_port": {"type": "int", "default": 0},
            "traffic_control": {"type": "bool", "default": False},
            "speculative": {"type": "dict", "default": {}},
            "max_running_requests": {"type": "int"},
            "arguments": {"type": "dict", "default": {}},
            "environment": {"type": "dict", "default": {}},
            "host_environment": {"type": "dict", "default": {}},
            "required_environment": {"type": "dict", "default": {}},
            "api_key": {"type": "str", "no_log": True},
            "admin_api_key": {"type": "str", "no_log": True},
            "unit_template": {"type": "str"},
            "user": {"type": "str", "default": "sglang"},
            "group": {"type": "str", "default": "sglang"},
            "state_dir": {"type": "path", "default": "/var/lib/sglang"},
            "cache_dir": {"type": "path"},
            "takeover": {"type": "list", "elements": "str", "default": []},
            "gpu_look": {"type": "dict", "default": {}},
            "start_timeout": {"type": "int", "default": 1800},
            "stop_timeout": {"type": "int", "default": 0},
            "gate": {"type": "dict", "default": {}},
            "keep": {"type": "int", "default": 2},
            "disable": {"type": "bool", "default": False},
            "gates": {"type": "dict", "default": {}},
            "check_sockets": {"type": "bool", "default": False},
            "admit": {"type": "dict", "default": {}},
            "failure": {"type": "dict", "default": {}},
            "failed_digest": {"type": "str"},
            "digest": {"type": "str"},
            "rollback": {"type": "bool", "default": False},
            "lease": {"type": "str"},
            "claim": {
                "type": "dict",
                "options": {
                    "ttl": {"type": "int", "default": 900},
                    "override": {"type": "str"},
                    "controller": {"type": "dict", "default": {}},
                    "dead": {"type": "str"},
                },
            },
            "last": {"type": "bool", "default": False},
            "refuse": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        result = run(params, check=module.check_mode)
    except AerieError as error:
        module.fail_json(**told_of(params, error.kind.code), **error.as_result())
    except OSError as error:
        module.fail_json(**told_of(params, ""), **host_error(error).as_result())
    for line in result.pop("advice", ()):
        module.warn(line)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
