"""A sweep: what is to be measured, what was, and what comes next. Pure; files are in ``journal.py``.

Order of a tune: the inventory's own setting (what it is compared with), no speculation, chain lengths as ``search.py``
names them, then presets and the user's candidates on the best chain. Order of a benchmark: production, baseline; both
end with the first setting once more, which shows drift.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .estimates import Estimate, Row, ratio
from .search import Measured, next_length
from .settings import Setting, base_setting, baseline_of, chain_of, require_chain, variations

MEASURED, FAILED = "measured", "failed"


@dataclass(frozen=True)
class Sweep:
    """What was asked for. ``budget_minutes`` and ``budget_restarts``: 0 for no limit. ``objective``: a batch size.

    floor: the inventory's for the accept length of ``base``, 0 for none.
    """

    kind: str
    base: Setting
    lengths: tuple[int, ...]
    presets: tuple[str, ...]
    custom_all_reduce: bool
    extras: tuple[Mapping[str, Any], ...]
    batch_sizes: tuple[int, ...]
    exhaustive: bool
    budget_minutes: float
    budget_restarts: int
    floor: float = 0.0

    @property
    def objective(self) -> int:
        """The batch size that decides: the first one asked for."""
        return self.batch_sizes[0]

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Sweep:
        """From a sweep file."""
        base = base_setting(raw["base"])
        if raw["kind"] == "tune":
            require_chain(base)
        return cls(
            kind=raw["kind"],
            base=base,
            lengths=tuple(sorted({int(steps) for steps in raw["lengths"]})),
            presets=tuple(raw["presets"]),
            custom_all_reduce=bool(raw["custom_all_reduce"]),
            extras=tuple(raw["candidates"]),
            batch_sizes=tuple(int(batch) for batch in raw["batch_sizes"]),
            exhaustive=bool(raw["exhaustive"]),
            budget_minutes=float(raw["budget_minutes"]),
            budget_restarts=int(raw["budget_restarts"]),
            floor=float(raw.get("floor") or 0),
        )


@dataclass(frozen=True)
class Record:
    """One started setting. ``result``: what sglang_benchmark returned; empty for a failed one."""

    setting: Setting
    status: str
    result: Mapping[str, Any]
    seconds: float
    failure: Mapping[str, Any]
    digest: str = ""

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Record:
        """From a line of the journal."""
        return cls(
            Setting.from_dict(raw["setting"]),
            raw["status"],
            raw.get("result") or {},
            float(raw.get("seconds") or 0),
            raw.get("failure") or {},
            raw.get("digest") or "",
        )

    def batch(self, size: int) -> Mapping[str, Any] | None:
        """Figures at a batch size."""
        return next((b for b in self.result.get("batches", []) if b["batch"] == size), None)

    def rows(self, size: int) -> Sequence[Row]:
        """Requests at a batch size."""
        found = self.batch(size)
        return found["rows"] if found else []

    def rate(self, size: int) -> Estimate | None:
        """Output tokens per second at a batch size."""
        found = self.batch(size)
        return (
            None if found is None else ratio(found["rows"], "tokens", "seconds").scaled(found["concurrency"])
        )

    def accept_length(self) -> float | None:
        """Tokens gained per verify; None without speculation."""
        found = (self.result.get("acceptance") or {}).get("accept_length")
        return None if found is None else float(found)

    def requests(self) -> list[Mapping[str, Any]]:
        """Prompt and histogram of each request of the acceptance pass; empty where the release gives none."""
        rows = (self.result.get("acceptance") or {}).get("rows") or []
        if any(row.get("histogram") is None for row in rows if row.get("verify_ct")):
            return []
        return [row for row in rows if row.get("histogram")]

    def measured(self, size: int) -> Measured:
        """As the search wants it."""
        found = self.batch(size)
        assert found is not None
        return Measured(self.setting.steps, found["rows"], self.requests(), float(found["concurrency"]))


@dataclass(frozen=True)
class Step:
    """What to do next: a setting, or none and why. ``text`` for a person."""

    setting: Setting | None
    text: str


def next_step(sweep: Sweep, records: Sequence[Record]) -> Step:
    """The next setting to start. A setting that was measured or failed is never named again."""
    tried = {record.setting.key for record in records if record.setting.kind != "again"}
    if sweep.base.key not in tried:
        return Step(sweep.base, "what the inventory asks for, to compare with")
    if sweep.kind == "profile":
        return Step(None, "the profile is measured")
    baseline = baseline_of(sweep.base)
    if baseline.key not in tried:
        return Step(baseline, "the same server without speculation")
    if sweep.kind == "benchmark":
        return Step(None, "production and baseline are measured")
    spent = _spent(sweep, records)
    if spent:
        return Step(None, spent)
    done = {r.setting.key: r for r in records if r.status == MEASURED}
    chain = _next_chain(sweep, records, done)
    if chain is not None:
        return chain
    best = best_record(sweep, records, chains_only=True)
    if best is None:
        return Step(None, "no setting could be measured")
    on = best.setting
    for one in variations(on, sweep.presets, sweep.custom_all_reduce, sweep.extras):
        if one.key not in tried:
            return Step(one, f"on the best chain so far ({on.name})")
    return Step(None, "everything that was asked for is known")


def _next_chain(sweep: Sweep, records: Sequence[Record], done: Mapping[str, Record]) -> Step | None:
    base = sweep.base
    measured, failed = {}, []
    for steps in {*sweep.lengths, base.steps} - {0}:
        key = base.key if steps == base.steps else chain_of(base, steps).key
        if key in done:
            measured[steps] = done[key].measured(sweep.objective)
        elif any(r.setting.key == key for r in records):
            failed.append(steps)
    off = done.get(baseline_of(base).key)
    steps = next_length(
        sorted({*sweep.lengths, base.steps}),
        measured,
        failed,
        exhaustive=sweep.exhaustive,
        baseline=off.rate(sweep.objective) if off else None,
    )
    if steps is None:
        return None
    if steps == max(sweep.lengths) and steps not in measured:
        why = "the longest chain: it shows the acceptance of every shorter one"
    elif sweep.exhaustive:
        why = "every chain length, as asked"
    elif len(measured) < 2:
        why = "the other end: what a step costs"
    else:
        why = "the predictions put it highest"
    return Step(chain_of(base, steps), why)


def _spent(sweep: Sweep, records: Sequence[Record]) -> str:
    """Why the budget is used up, or nothing. Base and baseline are always measured and count on no side."""
    counted = [r for r in records if r.setting.kind not in ("base", "baseline", "again")]
    if sweep.budget_restarts and len(counted) >= sweep.budget_restarts:
        return f"the budget of {sweep.budget_restarts} restarts is used"
    minutes = sum(r.seconds for r in records) / 60
    if sweep.budget_minutes and minutes >= sweep.budget_minutes:
        return f"the budget of {sweep.budget_minutes:g} minutes is used ({minutes:.0f})"
    return ""


def best_record(sweep: Sweep, records: Sequence[Record], *, chains_only: bool = False) -> Record | None:
    """The fastest measured setting at the batch size that decides; of equals the one with fewer steps."""
    kinds = ("base", "baseline", "chain") if chains_only else ("base", "baseline", "chain", "preset", "extra")
    rated = [
        (rate.value, -record.setting.steps, record)
        for record in records
        if record.status == MEASURED
        and record.setting.kind in kinds
        and (rate := record.rate(sweep.objective)) is not None
    ]
    return max(rated, key=lambda one: one[:2])[2] if rated else None


def record_of(records: Sequence[Record], kind: str) -> Record | None:
    """The measured record of a kind, the last one."""
    return next((r for r in reversed(records) if r.setting.kind == kind and r.status == MEASURED), None)
