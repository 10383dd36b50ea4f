"""What an accepted server has not been asked yet."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.aerie.instance import asked

THEN: dict[str, Any] = {
    "min_accept_length": 2.0, "soak_requests": 0, "agreement_margin": 0.1, "prompts": 24, "max_new_tokens": 128,
    "prompts_file": "", "chat_template": True,
}  # fmt: skip
ENTRY = {"gates": {"min_accept_length": 2.0, "soak_requests": 0}, asked.KEY: THEN}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"min_accept_length": 2.5}, "accept floor 2.0 -> 2.5"),
        ({"soak_requests": 300}, "soak none -> 300 requests"),
        ({"prompts": 48}, "gate: prompts 24 -> 48"),
        ({"prompts_file": "/srv/mine"}, "gate: prompts file those that ship -> /srv/mine"),
        ({"chat_template": False}, "gate: chat template on -> off"),
        ({"agreement_margin": 0.05}, "agreement margin 0.1 -> 0.05"),
    ],
)
def test_more_is_asked(change: dict[str, Any], line: str) -> None:
    assert asked.more(ENTRY, {**THEN, **change}, speculative=True) == [line]


@pytest.mark.parametrize(
    "change", [{}, {"min_accept_length": 1.5}, {"min_accept_length": 0.0}, {"agreement_margin": 0.3}]
)
def test_what_was_measured_answers_less(change: dict[str, Any]) -> None:
    assert asked.more(ENTRY, {**THEN, **change}, speculative=True) == []


def test_no_floor_without_speculation() -> None:
    assert asked.more(ENTRY, {**THEN, "min_accept_length": 3.0}, speculative=False) == []


def test_a_soak_that_was_seen_is_not_asked_again() -> None:
    """After SIGKILL 150 are soaked although nobody asked."""
    entry = {**ENTRY, "gates": {"min_accept_length": 2.0, "soak_requests": 150}}
    assert asked.more(entry, {**THEN, "soak_requests": 150}, speculative=True) == []


def test_an_acceptance_of_before_knows_its_floor_only() -> None:
    entry = {"gates": {"min_accept_length": 2.0}}
    assert asked.more(entry, {**THEN, "prompts": 48}, speculative=True) == []
    assert asked.more(entry, {**THEN, "min_accept_length": 2.1}, speculative=True) == [
        "accept floor 2.0 -> 2.1"
    ]
    assert asked.more({}, THEN, speculative=True) == ["accept floor none -> 2.0"]
