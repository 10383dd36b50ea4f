"""Is an output degenerate, that is, a loop?

Any draft, however badly wired, predicts a loop well: tokenspeed issue #1305 saw accept length 3.93 on a
two-token loop where chat prompts gave 1.94. So a looping answer says nothing about the wiring and must not
be counted.

Two signs are looked for. Both thresholds were set on captured outputs (tests/unit/data/accept/README.md):
natural text, code, and the CPU test pair's text, which repeats only after about 95 tokens, pass; loops of
one to 32 tokens do not.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_PERIOD = 32
"""A repetition with a longer period is a text that comes back (a refrain, a ring), not a model that is
stuck.
"""
LOOP_TOKENS = 48
"""So many tokens in a row must repeat; a table rule or a row of dashes is shorter."""
LOOP_TURNS = 4
WINDOW = 128
LOW_DISTINCT = 0.12
"""Share of distinct tokens in a window under which an output counts as a near loop (a counter inside a
loop).
"""
SHORTEST_JUDGED = 16
"""Outputs shorter than this are too short to tell."""


def loop_reason(tokens: Sequence[object]) -> str | None:
    """Why the output counts as degenerate, in words, or None.

    ``tokens``: output ids, or the words of the text for releases that return no ids.
    """
    count = len(tokens)
    if count < SHORTEST_JUDGED:
        return None
    for period in range(1, min(LONGEST_PERIOD, count // LOOP_TURNS) + 1):
        run = _longest_periodic_run(tokens, period)
        if run >= max(LOOP_TURNS * period, min(LOOP_TOKENS, count // 2)):
            return f"{run} of {count} tokens repeat with a period of {period}"
    if count >= LOOP_TOKENS:
        ratio = lowest_distinct_ratio(tokens)
        if ratio < LOW_DISTINCT:
            return f"a window of {min(count, WINDOW)} tokens holds only {ratio:.0%} different ones"
    return None


def lowest_distinct_ratio(tokens: Sequence[object]) -> float:
    """Distinct tokens / tokens in the most repetitive window of up to 128 tokens (windows step by half)."""
    width = min(len(tokens), WINDOW)
    starts = {*range(0, len(tokens) - width + 1, WINDOW // 2), len(tokens) - width}
    return min(len(set(tokens[start : start + width])) / width for start in starts)


def _longest_periodic_run(tokens: Sequence[object], period: int) -> int:
    """Length of the longest stretch in which every token equals the one ``period`` places before it."""
    best = run = 0
    for index in range(period, len(tokens)):
        run = run + 1 if tokens[index] == tokens[index - period] else 0
        best = max(best, run)
    return best + period if best else 0
