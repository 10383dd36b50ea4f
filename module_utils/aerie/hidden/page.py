"""The comparison as one HTML page that needs nothing else: verdict, table, and the similarity matrix as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_CELL_W, _CELL_H, _LEFT, _TOP = 74, 16, 190, 44
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1c1c1c }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.verdict { border-left: .4rem solid #b3261e; padding: .6rem 1rem; background: #fbeceb }
.verdict.match { border-color: #1b7f3b; background: #eaf6ee }
table { border-collapse: collapse } th, td { padding: .3rem .8rem; border-bottom: 1px solid #ddd; text-align: right }
th:first-child, td:first-child, td.text { text-align: left } svg text { font: 11px system-ui, sans-serif }
.facts { color: #555 }
"""


def page(result: Mapping[str, Any]) -> str:
    """The page for a result of ``sglang_hidden_states``."""
    kind = "verdict match" if result["passed"] else "verdict"
    advice = f"<p><b>Next:</b> {escape(result['next'])}</p>" if result.get("next") else ""
    facts = ", ".join(
        f"{name} {result[key]}" for name, key in _FACTS if result.get(key) not in (None, "", [])
    )
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>Hidden states: {escape(result['state'])}</title><style>{_STYLE}</style></head><body>\n"
        "<h1>Hidden states: what the draft gets, and what it was trained on</h1>\n"
        f"<div class='{kind}'><p>{escape(result['verdict'])}</p>{advice}</div>\n"
        f"<p class='facts'>{escape(facts)}</p>\n"
        f"<h2>Segments</h2>\n{_table(result['segments'])}\n{_picture(result)}</body></html>\n"
    )


_FACTS = (
    ("instance", "instance"),
    ("release", "release"),
    ("reference", "reference"),
    ("prompt tokens", "prompt_tokens"),
    ("dtype", "dtype"),
    ("tolerance", "tolerance"),
    ("captured layers", "captured_layers"),
    ("trained on layers", "training_layers"),
    ("at", "at"),
)


def _table(segments: Sequence[Mapping[str, Any]]) -> str:
    head = "<tr><th>segment</th><th>verdict</th><th>cosine</th><th>norm ratio</th><th>max difference</th><th>error</th>"
    rows = "".join(
        f"<tr><td>{one['segment']}</td><td class='text'>{escape(one['sentence'])}</td>"
        + "".join(
            f"<td>{_shown(one[name])}</td>" for name in ("cosine", "norm_ratio", "max_difference", "error")
        )
        + "</tr>"
        for one in segments
    )
    return f"<table>{head}</tr>{rows}</table>"


def _shown(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}"


def _picture(result: Mapping[str, Any]) -> str:
    matrix = result.get("similarity") or {}
    names, columns = matrix.get("states") or [], matrix.get("columns") or []
    if not names or not columns:
        return "<p>No all-layer lines were asked for, so there is no matrix and no state can be named.</p>"
    width, height = _LEFT + _CELL_W * len(columns) + 20, _TOP + _CELL_H * len(names) + 10
    parts = [f"<svg viewBox='0 0 {width} {height}' width='{width}' height='{height}' role='img' "]
    parts.append("aria-label='cosine of each state of the target with each segment'>")
    for place, column in enumerate(columns):
        x = _LEFT + place * _CELL_W
        first, _, second = column["name"].partition(" ")
        parts.append(
            f"<text x='{x + 4}' y='18'>{escape(first)}</text><text x='{x + 4}' y='34'>{escape(second)}</text>"
        )
        best = _best(column["cosine"])
        for row, value in enumerate(column["cosine"]):
            parts.append(_cell(x, _TOP + row * _CELL_H, value, marked=row == best))
    for row, name in enumerate(names):
        parts.append(
            f"<text x='{_LEFT - 8}' y='{_TOP + row * _CELL_H + 12}' text-anchor='end'>{escape(name)}</text>"
        )
    parts.append("</svg>")
    return (
        "<h2>Which state of the target each segment is</h2>\n<p>Cosine of a token's state, median over the prompt. The "
        "framed cell of a column is the nearest; a served segment and its reference should have it in one row.</p>\n"
        + "".join(parts)
    )


def _best(values: Sequence[float | None]) -> int | None:
    known = [(value, -place) for place, value in enumerate(values) if value is not None]
    return -max(known)[1] if known else None


def _cell(x: int, y: int, value: float | None, *, marked: bool) -> str:
    """Blue in proportion to the cosine; the frame marks the nearest."""
    share = 0.0 if value is None else max(0.0, min(1.0, value))
    red, green, blue = (round(255 + (dark - 255) * share) for dark in (23, 78, 166))
    ink = "#fff" if share > 0.6 else "#333"
    text = "" if value is None else f"{value:.2f}"
    frame = " stroke='#d97706' stroke-width='2'" if marked else ""
    return (
        f"<rect x='{x + 1}' y='{y + 1}' width='{_CELL_W - 2}' height='{_CELL_H - 2}' "
        f"fill='rgb({red},{green},{blue})'{frame}/><text x='{x + _CELL_W // 2}' y='{y + 12}' fill='{ink}' "
        f"text-anchor='middle'>{text}</text>"
    )
