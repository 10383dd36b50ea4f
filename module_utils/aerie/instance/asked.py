"""What the gates were asked when a deployment was accepted, against what they are asked now. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Key of a history's entry; its value is the option ``gate`` of ``sglang_deployment``.
KEY = "asked"
# Another value of these gives another measurement. How a person says each.
_MEASUREMENT = {
    "prompts": "prompts",
    "max_new_tokens": "new tokens per prompt",
    "prompts_file": "prompts file",
    "chat_template": "chat template",
}


def more(entry: Mapping[str, Any], now: Mapping[str, Any], *, speculative: bool) -> list[str]:
    """What an accepted server has not been asked yet, a line each; empty where its acceptance still answers it.

    entry: the record of the acceptance. now: what is asked today: ``min_accept_length``, ``soak_requests``,
    ``agreement_margin``, ``prompts``, ``max_new_tokens``, ``prompts_file``, ``chat_template``. A lower floor, fewer
    requests to soak and a wider margin are answered by what was measured already.
    """
    gates, then = entry.get("gates") or {}, entry.get(KEY) or {}
    lines = []
    floor, was = float(now.get("min_accept_length") or 0), float(gates.get("min_accept_length") or 0)
    if speculative and floor > was:
        lines.append(f"accept floor {was or 'none'} -> {floor}")
    if not then:
        return lines
    seen = max(int(then.get("soak_requests") or 0), int(gates.get("soak_requests") or 0))
    soak = int(now.get("soak_requests") or 0)
    if soak > seen:
        lines.append(f"soak {seen or 'none'} -> {soak} requests")
    lines += [
        f"gate: {said} {_shown(then.get(name))} -> {_shown(now.get(name))}"
        for name, said in _MEASUREMENT.items()
        if name in now and name in then and then[name] != now[name]
    ]
    margin, wide = now.get("agreement_margin"), then.get("agreement_margin")
    if speculative and margin is not None and wide is not None and float(margin) < float(wide):
        lines.append(f"agreement margin {wide} -> {margin}")
    return lines


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) if value != "" else "those that ship"
