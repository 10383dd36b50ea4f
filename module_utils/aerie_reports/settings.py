"""What a sweep can start: settings, and the presets that make sense for a host's topology."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ansible.module_utils.aerie.instance.arguments import normalise
from ansible.module_utils.aerie.measure.tune_errors import NO_CHAIN, UNKNOWN_PRESET

NCCL_TUNED = ("NCCL_PROTO", "NCCL_ALGO", "NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE")
"""Variables that a preset owns: another preset takes them out again."""

PRESETS: dict[str, dict[str, str]] = {
    "NCCL default": {},
    # What helped by hand on PCIe: low latency protocol, ring, peer-to-peer across sockets.
    "LL/Ring/SYS": {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS"},
    "LL/Ring/PHB": {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "PHB"},
    # Tree alone has no all-gather (NVIDIA/nccl #1473), so it is named for all-reduce only.
    "LL/Tree": {"NCCL_PROTO": "LL", "NCCL_ALGO": "allreduce:tree"},
    "LL": {"NCCL_PROTO": "LL"},
    "no P2P": {"NCCL_P2P_DISABLE": "1"},
}
"""LL128 is left out on purpose: where the interconnect does not keep 128-byte stores whole it corrupts data."""

CUSTOM_ALL_REDUCE = "disable_custom_all_reduce"


@dataclass(frozen=True)
class Setting:
    """One way to run the server. ``steps`` 0: no speculation. ``kind``: base, baseline, chain, preset, extra, again."""

    name: str
    kind: str
    mode: str
    steps: int
    speculative: Mapping[str, Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Names what is started, whatever it is called and why."""
        same = [self.mode, dict(self.speculative), dict(self.arguments), dict(self.environment)]
        return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "key": self.key}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Setting:
        """What :meth:`as_dict` made."""
        return cls(**{name: raw[name] for name in cls.__dataclass_fields__})


def _steps(steps: int) -> str:
    return "no speculation" if not steps else "1 step" if steps == 1 else f"{steps} steps"


def base_setting(base: Mapping[str, Any]) -> Setting:
    """The inventory's own production setting."""
    speculative = dict(base["speculative"])
    steps = int(speculative.get("num_steps") or 0)
    name = f"as in the inventory ({_steps(steps)})"
    return Setting(
        name, "base", "production", steps, speculative, dict(base["arguments"]), dict(base["environment"])
    )


def baseline_of(setting: Setting) -> Setting:
    """The same server without speculation."""
    return Setting("no speculation", "baseline", "baseline", 0, {}, setting.arguments, setting.environment)


def chain_of(setting: Setting, steps: int) -> Setting:
    """The same server with another chain length (topk 1: steps + 1 tokens are verified)."""
    if steps == 0:
        return baseline_of(setting)
    speculative = {
        **setting.speculative,
        "num_steps": steps,
        "eagle_topk": 1,
        "num_draft_tokens": steps + 1,
    }
    return Setting(
        _steps(steps), "chain", "production", steps, speculative, setting.arguments, setting.environment
    )


def require_chain(setting: Setting) -> None:
    """Refuse a base whose chain lengths could not be swept."""
    topk = setting.speculative.get("eagle_topk")
    if not setting.speculative.get("algorithm") or topk != 1 or not setting.steps:
        raise NO_CHAIN.error(
            "the chain length cannot be tuned from this setting",
            evidence=[f"sglang_server_speculative: {dict(setting.speculative) or 'empty'}"],
            next="set sglang_server_speculative with algorithm, num_steps, eagle_topk: 1 and num_draft_tokens",
        )


def presets_for(topology: Sequence[Mapping[str, Any]], wanted: Sequence[str] | None) -> list[str]:
    """Names of NCCL presets worth a start. ``topology``: pairs of GPUs as gpu_host_check gives them.

    None wanted: by topology. A single GPU has nothing to say to another. Over NVLink custom all-reduce takes the small
    messages of decoding off NCCL, so its protocol hardly matters there; over PCIe it does.
    """
    if wanted is not None:
        unknown = sorted(set(wanted) - set(PRESETS))
        if unknown:
            raise UNKNOWN_PRESET.error(
                f"there is no NCCL preset {', '.join(unknown)}",
                evidence=[f"known: {', '.join(PRESETS)}"],
                next="correct sglang_tune_nccl_presets; variables of your own go into sglang_tune_candidates",
            )
        return list(wanted)
    if not topology:
        return []
    if all(int(pair.get("nvlinks") or 0) > 0 for pair in topology):
        return ["NCCL default", "LL"]
    with_p2p = any(pair.get("p2p") for pair in topology)
    return ["NCCL default", "LL/Ring/SYS", "LL/Ring/PHB", "LL/Tree", *(["no P2P"] if with_p2p else [])]


def try_custom_all_reduce(topology: Sequence[Mapping[str, Any]], asked: bool | None) -> bool:
    """Whether custom all-reduce is worth a start: over NVLink, or between two GPUs; SGLang refuses it beyond that."""
    if asked is not None:
        return asked
    return bool(topology) and (
        len(topology) == 1 or all(int(pair.get("nvlinks") or 0) > 0 for pair in topology)
    )


def variations(
    on: Setting, presets: Sequence[str], custom_all_reduce: bool, extras: Sequence[Mapping[str, Any]]
) -> list[Setting]:
    """Settings that change one thing of ``on``: NCCL presets, custom all-reduce, and what the user listed."""
    found = []
    rest = {name: value for name, value in on.environment.items() if name not in NCCL_TUNED}
    for name in presets:
        found.append(_varied(on, name, "preset", environment={**rest, **PRESETS[name]}))
    if custom_all_reduce:
        off = any(value for k, value in on.arguments.items() if normalise(k) == CUSTOM_ALL_REDUCE)
        plain = {k: v for k, v in on.arguments.items() if normalise(k) != CUSTOM_ALL_REDUCE}
        name = "custom all-reduce on" if off else "custom all-reduce off"
        found.append(
            _varied(on, name, "preset", arguments=plain if off else {**plain, CUSTOM_ALL_REDUCE: True})
        )
    for extra in extras:
        found.append(
            _varied(
                on,
                str(extra["name"]),
                "extra",
                arguments=_merged(on.arguments, extra.get("arguments") or {}),
                environment={**on.environment, **(extra.get("environment") or {})},
            )
        )
    return [one for one in found if one.key != on.key]


def _merged(arguments: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """More arguments over the inventory's, also where a name is spelled another way (page-size, page_size)."""
    named = {normalise(name) for name in more}
    return {**{name: value for name, value in arguments.items() if normalise(name) not in named}, **more}


def _varied(
    on: Setting,
    name: str,
    kind: str,
    *,
    arguments: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> Setting:
    return Setting(
        f"{_steps(on.steps)}, {name}",
        kind,
        on.mode,
        on.steps,
        on.speculative,
        on.arguments if arguments is None else arguments,
        on.environment if environment is None else environment,
    )
