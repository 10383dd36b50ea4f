"""The layer ids that a draft's config names, as SGLang reads them. Apart, since every step of a deployment needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DraftIds:
    """The layer ids as SGLang finds them in the draft's config.

    where: ``nested`` (``eagle_config``, the only place that is read), ``top-level``, ``null`` or ``missing``.
    raw: the value as written. ids: the numbers, or None where none reach the target or the value is no list of them.
    use_aux: ``eagle_config.use_aux_hidden_state``, true when left out.
    """

    where: str
    raw: Any
    ids: tuple[int, ...] | None
    use_aux: bool


def read_draft_ids(config: Mapping[str, Any]) -> DraftIds:
    """Read ids the way ``ModelRunner`` does: from ``eagle_config`` alone; anything else silently means "default"."""
    nested = config.get("eagle_config")
    holder = nested if isinstance(nested, Mapping) else {}
    key = "eagle_aux_hidden_state_layer_ids"
    use_aux = bool(holder.get("use_aux_hidden_state", True))
    if holder.get(key) is not None:
        raw = holder[key]
        return DraftIds("nested", raw, _numbers(raw), use_aux)
    if config.get(key) is not None:
        return DraftIds("top-level", config[key], None, use_aux)
    return DraftIds("null" if key in holder else "missing", None, None, use_aux)


def _numbers(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not value:
        return None
    return tuple(value) if all(type(item) is int for item in value) else None
