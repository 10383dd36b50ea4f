"""What changes between two specs, as a person would say it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from .spec import DEPLOYMENT

# How a person says a flag. SGLang's other names for the same are refused by ``arguments``.
_NAMES = {
    "--model-path": "target",
    "--speculative-draft-model-path": "draft",
    "--speculative-algorithm": "speculation",
    "--speculative-num-steps": "steps",
    "--speculative-eagle-topk": "topk",
    "--speculative-num-draft-tokens": "draft tokens",
}
_SPECULATION = [name for name in _NAMES if name.startswith("--speculative")]
# All of these say whether CUDA graphs are captured (``mode.without_cuda_graphs`` says in which release which does).
_GRAPHS = (
    "--disable-cuda-graph",
    "--disable-piecewise-cuda-graph",
    "--enforce-piecewise-cuda-graph",
    "--enable-piecewise-cuda-graph",
    "--cuda-graph-config",
)
# A mode sets these itself; the line about the mode says it.
_OF_A_MODE = ("EAGLE3_DEBUG", "EAGLE3_DEBUG_DIR", "AERIE_PROFILE_DIR")


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What changes between two spec records, a line each, what matters most first. Secrets are named, not shown."""
    lines: list[str] = []
    if old.get("mode") != new.get("mode"):
        lines.append(f"mode {old.get('mode')} -> {new.get('mode')}")
    lines += _release(old.get("release") or {}, new.get("release") or {})
    lines += _patches(old, new)
    before, after = _flags(_command(old)), _flags(_command(new))
    lines += _graphs(before, after)
    lines += _speculation(before, after)
    lines += _words(_only(before, _NAMES), _only(after, _NAMES), said=_NAMES)
    for role in ("target", "draft"):
        then, wanted = _model(old, role), _model(new, role)
        same_path = bool(then and wanted) and then.get("path") == wanted.get("path")
        if same_path and then.get("config_sha256") != wanted.get("config_sha256"):
            lines.append(f"{role} model's config.json changed on disk")
    lines += layer_id_changes(old, new)
    lines += _words(_without(before, _NAMES), _without(after, _NAMES), said={})
    lines += _words(
        _variables(old, new),
        _variables(new, old),
        said={name: f"variable {name}" for name in _names(old, new)},
    )
    for name in sorted(set(old.get("secrets") or {}) | set(new.get("secrets") or {})):
        was, now = (old.get("secrets") or {}).get(name), (new.get("secrets") or {}).get(name)
        if was != now:
            lines.append(f"{name} {'set' if not was else 'removed' if not now else 'changed'}")
    if old.get("unit") != new.get("unit") and not lines:
        lines += _unit(str(old.get("unit") or ""), str(new.get("unit") or ""))
    return lines


def _release(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    if old.get("release") != new.get("release"):
        return [f"release {old.get('release')} -> {new.get('release')}"]
    if {**old, "source": ""} != {**new, "source": ""}:
        return [f"release {new.get('release')} installed anew"]
    return []


def cuda_graphs(flags: Mapping[str, str]) -> bool:
    """Whether these flags have SGLang capture CUDA graphs for decoding: it does unless it is told not to."""
    if "--disable-cuda-graph" in flags:
        return False
    decode = _graph_config(flags).get("decode")
    return not (isinstance(decode, Mapping) and decode.get("backend") == "disabled")


def _graph_config(flags: Mapping[str, str]) -> dict[str, Any]:
    try:
        config = json.loads(flags.get("--cuda-graph-config") or "{}")
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


def _graphs(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """``CUDA graphs on``; takes the flags that only say this out of both."""
    on = cuda_graphs(after)
    if cuda_graphs(before) == on:
        return []
    rest = [
        {
            phase: {key: value for key, value in one.items() if key != "backend"}
            for phase, one in _graph_config(flags).items()
            if isinstance(one, Mapping)
        }
        for flags in (before, after)
    ]
    rest = [{phase: one for phase, one in config.items() if one} for config in rest]
    for name in _GRAPHS:
        if name != "--cuda-graph-config" or rest[0] == rest[1]:
            before.pop(name, None)
            after.pop(name, None)
    return [f"CUDA graphs {'on' if on else 'off'}"]


def _speculation(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Speculation as a whole, where it comes or goes; takes its flags out of both then."""
    name = "--speculative-algorithm"
    if (name in before) == (name in after):
        return []
    on = after.get(name)
    line = "speculation off"
    if on is not None:
        steps, tokens = (after.get(f"--speculative-num-{one}", "?") for one in ("steps", "draft-tokens"))
        line = f"speculation {on}: {steps} steps, {tokens} draft tokens"
    for one in _SPECULATION:
        before.pop(one, None)
        after.pop(one, None)
    return [line]


def _model(record: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    return (record.get("models") or {}).get(role) or {}


def _command(record: Mapping[str, Any]) -> list[str]:
    """The command with the user's draft in place of the deployment's copy of it: that is what a person named."""
    path = _model(record, "draft").get("path")
    copy = f"{DEPLOYMENT}/draft"
    return [path if path and word == copy else word for word in record.get("command") or []]


def layer_id_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The line about the layer ids that a draft is served with; of another draft, what becomes of its own ids."""
    before, after = _model(old, "draft"), _model(new, "draft")
    was, now = before.get("layer_ids"), after.get("layer_ids")
    same = all(before.get(key) == after.get(key) for key in ("path", "config_sha256"))
    own = (after if now else before).get("config_layer_ids")
    if same:
        was, now = was or own, now or own
    elif now:
        was = own
    else:
        return []
    return [] if was == now else [f"draft layer ids {_shown(was)} -> {_shown(now)}"]


def _patches(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    before, after = (
        {one["name"]: one["sha256"] for one in record.get("patches") or []} for record in (old, new)
    )
    applied = [name for name in after if name not in before]
    reverted = [name for name in before if name not in after]
    changed = [name for name in after if before.get(name, after[name]) != after[name]]
    groups = ((applied, "to apply"), (reverted, "to revert"), (changed, "changed"))
    return [_count(names, verb) for names, verb in groups if names]


def _count(names: list[str], verb: str) -> str:
    """``patches to apply: a, b``, and of many ``7 patches to apply: a, b, c, …``."""
    if len(names) <= 4:
        return f"patch{'es' if len(names) > 1 else ''} {verb}: {', '.join(names)}"
    return f"{len(names)} patches {verb}: {', '.join(names[:3])}, …"


def _shown(ids: list[int] | None) -> str:
    return f"[{','.join(str(one) for one in ids)}]" if ids else "none"


def _flags(command: list[str]) -> dict[str, str]:
    """``[--a, 1, 2, --b]`` -> ``{--a: "1 2", --b: ""}``; the interpreter and module in front are left out."""
    flags: dict[str, str] = {}
    current = None
    for word in command:
        if word.startswith("--"):
            current = word
            flags[current] = ""
        elif current is not None:
            flags[current] = f"{flags[current]} {word}".strip()
    return flags


def _only(flags: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    return {name: value for name, value in flags.items() if name in names}


def _without(flags: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    return {name: value for name, value in flags.items() if name not in names}


def _names(*records: Mapping[str, Any]) -> Iterable[str]:
    return {name for one in records for name in one.get("environment") or {} if not name.startswith("NCCL_")}


def _variables(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, str]:
    """A record's environment without what a change of mode brings along."""
    skip = _OF_A_MODE if one.get("mode") != other.get("mode") else ()
    return {name: value for name, value in (one.get("environment") or {}).items() if name not in skip}


def _words(old: Mapping[str, str], new: Mapping[str, str], said: Mapping[str, str]) -> list[str]:
    """``steps 3 -> 2``, ``NCCL_ALGO Ring added``, ``--tp-size 8 removed``."""
    lines = []
    for name in sorted(set(old) | set(new)):
        word = said.get(name, name)
        if name in old and name not in new:
            lines.append(f"{word} {old[name]} removed".replace("  ", " "))
        elif name in new and name not in old:
            lines.append(f"{word} {new[name]} added".replace("  ", " "))
        elif old[name] != new[name]:
            lines.append(f"{word} {old[name]} -> {new[name]}")
    return lines


def _unit(old: str, new: str) -> list[str]:
    """Lines of the unit that differ, when nothing else does."""
    before = [line.strip() for line in old.splitlines() if line.strip() and not line.startswith("#")]
    after = [line.strip() for line in new.splitlines() if line.strip() and not line.startswith("#")]
    gone = [line for line in before if line not in after]
    fresh = [line for line in after if line not in before]
    shown = [f"without {line}" for line in gone] + [f"with {line}" for line in fresh]
    if not shown:
        return ["unit file changed"]
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    return [f"unit file: {', '.join(shown[:4])}{more}"]
