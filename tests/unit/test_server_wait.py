"""One call of the wait: it looks on until there is an end, and tells what is new without leaving a gap too often."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sglang_server_wait as module
from ansible.module_utils.aerie.health import Answer
from ansible.module_utils.aerie.systemd import JournalPart
from test_startup import LOADING, UNIT


class Clock:
    """Time that passes only in pauses; keeps how long each was."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def watch(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, texts: list[str], until: str = "stopped", **params: Any
) -> dict[str, Any]:
    """The result of one call on a server that says ``texts`` one after the other; ``end`` is the end."""
    said = iter(texts)
    last = texts[-1]

    def look(given: dict[str, Any]) -> tuple[dict[str, Any], None]:
        text = next(said, last)
        return {"done": text == "end", "text": text, "phase": text, "cursor": ""}, None

    monkeypatch.setattr(module, "look", look)
    given = {"hold": 10.0, "told": "", "until": until, **params}
    result, error = module.watch(given)
    assert error is None
    return result


def test_the_end_is_told_at_once(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    assert watch(monkeypatch, clock, ["3 left", "2 left", "end"])["done"]
    assert clock.pauses == [module.PAUSE_S] * 2


def test_news_wait_a_little(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    assert watch(monkeypatch, clock, ["3 left"])["text"] == "3 left"
    assert module.TELL_S <= clock.now - 100.0 < module.TELL_S + 1


def test_nothing_new_holds_to_the_end(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    watch(monkeypatch, clock, ["3 left"], told="3 left")
    assert 10.0 <= clock.now - 100.0 < 11


def test_a_module_alone_looks_once(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    watch(monkeypatch, clock, ["3 left"], hold=0)
    assert clock.pauses == []


def test_a_server_that_loads_is_looked_at_less(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    watch(monkeypatch, clock, ["importing", "end"], until="ready")
    assert clock.pauses == [module.LOADING_PAUSE_S]


def test_shortly_before_the_end_only_health_is_asked_and_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    answers = iter([503, 0, 503, 200])
    asked: list[str] = []

    def get(host: str, port: int, path: str, timeout: float) -> Answer:
        asked.append(path)
        return Answer(next(answers), b"")

    monkeypatch.setattr(module.health, "get", get)
    watch(monkeypatch, clock, ["fired up", "end"], until="ready", host="127.0.0.1", port=30000)
    assert asked == ["/health"] * 4
    assert clock.pauses == [module.HEALTH_PAUSE_S] * 3


def test_whoever_waits_is_told_the_pid(tmp_path: Path) -> None:
    assert module.announced(str(tmp_path / "ready"), 77)
    assert (tmp_path / "ready").read_text() == "77"
    assert not module.announced(str(tmp_path / "gone" / "ready"), 77)


def test_a_server_that_is_just_ending_is_told_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Seen on an H200: its last words had been read by the look before, and the error came without any."""
    leaving = replace(LOADING, unit=replace(UNIT, active="deactivating", sub="stop-sigkill"))
    monkeypatch.setattr(module.reality, "look", lambda *words, **more: leaving)
    monkeypatch.setattr(
        module.systemd,
        "journal",
        lambda unit, **more: JournalPart(
            ["torch.OutOfMemoryError: CUDA out of memory."] if "last" in more else [], "c"
        ),
    )
    params = {"state_dir": str(tmp_path), "instance": "default", "lease": None, "host": "127.0.0.1"}
    _, error = module.look({**params, "port": 30000, "until": "ready", "cursor": "c", "phase": "importing"})
    assert error is not None
    assert error.evidence == ["torch.OutOfMemoryError: CUDA out of memory."]
    assert "mem_fraction_static" in error.next
