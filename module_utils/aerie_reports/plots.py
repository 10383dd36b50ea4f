"""The report's plots, as SVG text to put into the page."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .words import PART_NAMES

INK, MUTED, GRID = "#1b2433", "#66758c", "#e6eaf1"
MEASURED, PREDICTED, BAND, NONE = "#2451d6", "#7b9bf2", "#dfe7fd", "#8a97ab"
GOOD, BAD, WARM = "#0f8a63", "#cf3d3d", "#e08a1e"

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "svg.fonttype": "path",
}


def _figure(salt: str, height: float = 3.7) -> tuple[Figure, Axes]:
    matplotlib.rcParams.update({**STYLE, "svg.hashsalt": salt})
    figure = Figure(figsize=(6.8, height), layout="constrained")
    axes = figure.subplots()
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    return figure, axes


def _svg(figure: Figure) -> str:
    """The picture alone, without XML head, scaling to the page's width."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    head, rest = text.split(">", 1)
    words = [word for word in head.split() if not word.startswith(("width=", "height="))]
    return " ".join(words) + ">" + rest


def _bars(estimates: Sequence[Mapping[str, float]]) -> list[list[float]]:
    return [
        [one["value"] - one["low"] for one in estimates],
        [one["high"] - one["value"] for one in estimates],
    ]


def speed_over_steps(results: Mapping[str, Any]) -> str | None:
    """Output tokens per second over chain length: predicted with its band, measured with intervals."""
    size = str(results["objective"])
    predicted = results["predictions"]
    measured = [
        (s["steps"], s["batches"][size]["rate"])
        for s in results["settings"]
        if s["status"] == "measured"
        and s["kind"] in ("base", "chain")
        and s["steps"]
        and size in s["batches"]
    ]
    if not measured:
        return None
    figure, axes = _figure("speed")
    if predicted:
        steps = [p["steps"] for p in predicted]
        axes.fill_between(
            steps,
            [p["rate"]["low"] for p in predicted],
            [p["rate"]["high"] for p in predicted],
            color=BAND,
            lw=0,
        )
        axes.plot(
            steps,
            [p["rate"]["value"] for p in predicted],
            color=PREDICTED,
            lw=2,
            ls=(0, (4, 2)),
            label="predicted",
        )
    rates = [rate for _, rate in measured]
    axes.errorbar(
        [k for k, _ in measured], [r["value"] for r in rates], yerr=_bars(rates),
        fmt="o", color=MEASURED, ms=7, capsize=4, lw=1.8, label="measured, 95 % interval", zorder=5,
    )  # fmt: skip
    _baseline(axes, results, size)
    axes.set_xlabel("draft steps")
    axes.set_ylabel(f"output tokens per second, batch {size}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _room(axes)
    figure.legend(frameon=False, loc="outside upper left", ncols=3, labelcolor=INK, fontsize=11)
    return _svg(figure)


def _baseline(axes: Axes, results: Mapping[str, Any], size: str) -> None:
    off = next((s for s in results["settings"] if s["kind"] == "baseline" and size in s["batches"]), None)
    if off is None:
        return
    rate = off["batches"][size]["rate"]
    axes.axhspan(rate["low"], rate["high"], color=NONE, alpha=0.18, lw=0)
    axes.axhline(rate["value"], color=NONE, lw=1.6, label="no speculation")


def _room(axes: Axes) -> None:
    """A little air above and below what is drawn; the axis need not begin at 0 where only differences matter."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(0.0, low - 0.05 * (high - low)), high + 0.08 * (high - low))


def acceptance(results: Mapping[str, Any]) -> str | None:
    """Acceptance of each draft position, of all verifies and of those that got so far."""
    found = results["acceptance"]
    if found is None:
        return None
    positions = list(range(1, len(found["unconditional"]) + 1))
    figure, axes = _figure("acceptance")
    bars = axes.bar(positions, [100 * share for share in found["unconditional"]], width=0.62, color=MEASURED)
    axes.bar_label(
        bars, labels=[f"{100 * s:.0f}" for s in found["unconditional"]], color=INK, padding=2, fontsize=11
    )
    known = [(k, 100 * s) for k, s in zip(positions, found["conditional"], strict=True) if s is not None]
    axes.plot(
        *zip(*known, strict=True),
        color=WARM,
        marker="o",
        ms=5,
        lw=1.8,
        label="where the one before was accepted",
    )
    axes.set_ylim(0, 108)
    axes.set_xticks(positions)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("draft position")
    axes.set_ylabel("accepted, %")
    axes.legend(frameon=False, loc="upper right", labelcolor=INK)
    return _svg(figure)


def cycle_cost(results: Mapping[str, Any]) -> str | None:
    """A decode cycle over chain length: the fixed part, the steps' part, and what was measured."""
    cost = results["cost"]
    if cost is None:
        return None
    longest = max(p["steps"] for p in results["predictions"])
    steps = list(range(1, longest + 1))
    fixed = max(cost["at_zero_ms"], 0.0)
    figure, axes = _figure("cycle")
    axes.bar(steps, [fixed] * longest, width=0.62, color="#c9d3e6", label=f"fixed {fixed:.2f} ms")
    axes.bar(
        steps, [max(cost["step_ms"], 0.0) * k for k in steps], bottom=fixed, width=0.62, color=PREDICTED,
        label=f"{cost['step_ms']:.2f} ms a step (draft one, verify one more)",
    )  # fmt: skip
    points = cost["points"]
    axes.errorbar(
        [p["steps"] for p in points], [p["cycle_ms"] for p in points], yerr=[1.96 * p["sigma_ms"] for p in points],
        fmt="o", color=INK, ms=6, capsize=4, lw=1.6, label="measured",
    )  # fmt: skip
    axes.set_xticks(steps)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("draft steps")
    axes.set_ylabel(f"decode cycle, ms, batch {results['objective']}")
    axes.legend(frameon=False, loc="upper left", labelcolor=INK)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.22)
    return _svg(figure)


def variations(results: Mapping[str, Any]) -> str | None:
    """Presets and the user's candidates against the chain that they were tried on."""
    size = str(results["objective"])
    tried = [s for s in results["settings"] if s["kind"] in ("preset", "extra") and size in s["batches"]]
    if not tried:
        return None
    steps = tried[0]["steps"]
    plain = [
        s
        for s in results["settings"]
        if s["steps"] == steps and s["kind"] in ("base", "chain", "baseline") and size in s["batches"]
    ]
    rows = sorted([*plain[:1], *tried], key=lambda s: s["batches"][size]["rate"]["value"])
    rates = [s["batches"][size]["rate"] for s in rows]
    figure, axes = _figure("variations", height=0.9 + 0.5 * len(rows))
    colours = [NONE if s["kind"] in ("base", "chain", "baseline") else MEASURED for s in rows]
    names = [s["name"].split(", ", 1)[-1] if s["kind"] in ("preset", "extra") else s["name"] for s in rows]
    axes.barh(names, [r["value"] for r in rates], color=colours, height=0.56)
    axes.errorbar(
        [r["value"] for r in rates], names, xerr=_bars(rates), fmt="none", ecolor=INK, capsize=4, lw=1.5
    )
    for name, rate in zip(names, rates, strict=True):
        axes.annotate(
            f"{rate['value']:.1f}",
            (rate["high"], name),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_xlim(0, max(r["high"] for r in rates) * 1.14)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_xlabel(f"output tokens per second, batch {size}")
    return _svg(figure)


def speedup_by_batch(results: Mapping[str, Any], name: str) -> str | None:
    """Speed with speculation over speed without, at each batch size."""
    setting = next((s for s in results["settings"] if s["name"] == name and s["status"] == "measured"), None)
    sizes = (
        []
        if setting is None
        else [b for b in results["batch_sizes"] if (setting["batches"].get(str(b)) or {}).get("speedup")]
    )
    if setting is None or not sizes:
        return None
    found = [setting["batches"][str(b)]["speedup"] for b in sizes]
    figure, axes = _figure("speedup")
    places = list(range(len(sizes)))
    axes.axhline(1.0, color=NONE, lw=1.6)
    for place, one in zip(places, found, strict=True):
        colour = GOOD if one["low"] > 1 else BAD if one["high"] < 1 else WARM
        axes.errorbar(
            [place], [one["value"]], yerr=_bars([one]), fmt="o", color=colour, ms=10, capsize=6, lw=2.2
        )
        axes.annotate(f"× {one['value']:.2f}", (place, one["value"]), xytext=(14, 0), textcoords="offset points",
                      va="center", fontsize=14, color=colour)  # fmt: skip
    axes.set_xticks(places, [f"batch {b}" for b in sizes], color=INK)
    axes.set_xlim(-0.5, len(sizes) - 0.35)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("speed against no speculation")
    low, high = min(1.0, *(f["low"] for f in found)), max(1.0, *(f["high"] for f in found))
    axes.set_ylim(low - 0.12 * (high - low + 0.1), high + 0.12 * (high - low + 0.1))
    return _svg(figure)


def parts_of_cycle(batches: Sequence[Mapping[str, Any]]) -> str | None:
    """From profile.yml: draft, verify, extend and the rest of a cycle, by batch size."""
    if not batches:
        return None
    figure, axes = _figure("parts", height=0.9 + 0.62 * len(batches))
    names = [f"batch {b['batch']}" for b in batches][::-1]
    left = [0.0] * len(batches)
    colours = {"draft": WARM, "verify": MEASURED, "extend": PREDICTED, "rest": "#c9d3e6"}
    for part, colour in colours.items():
        values = [b["parts"][part]["median_ms"] for b in batches][::-1]
        axes.barh(names, values, left=left, height=0.56, color=colour, label=PART_NAMES[part])
        for name, at, value, batch in zip(names, left, values, batches[::-1], strict=True):
            if batch["parts"][part]["share"] > 0.06:
                axes.annotate(f"{100 * batch['parts'][part]['share']:.0f} %", (at + value / 2, name), ha="center",
                              va="center", color="white" if part != "rest" else INK, fontsize=11)  # fmt: skip
        left = [a + b for a, b in zip(left, values, strict=True)]
    axes.set_xlabel("ms of a decode cycle (medians)")
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", labelcolor=INK)
    figure.legend(frameon=False, loc="outside upper center", ncols=4)
    return _svg(figure)
