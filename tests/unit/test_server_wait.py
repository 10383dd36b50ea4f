"""The wait for a server: it looks on until there is an end, and tells what is new without leaving a gap too often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.health import Answer
from ansible.module_utils.aerie.instance import waiting
from ansible.module_utils.aerie.instance.state import InstanceStore
from ansible.module_utils.aerie.instance.waiting import Seen, Wait
from ansible.module_utils.aerie.systemd import JournalPart
from test_startup import LOADING, UNIT


class Health:
    """Requests to /health: each answers with the next status, after so many seconds of the clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.of: Callable[[float], tuple[int, float]] = lambda now: (0, 0.0)
        self.asked: list[float] = []
        self.closed = 0

    def __call__(self, host: str, port: int, path: str, *, timeout: float) -> Health:
        assert (host, port, path) == ("127.0.0.1", 30000, "/health")
        self.asked.append(self.clock.now)
        self.status, after = self.of(self.clock.now)
        self.at = self.clock.now + after
        return self

    def pending(self, seconds: float) -> bool:
        late = self.at > self.clock.now + seconds
        self.clock.now += seconds if late else max(0.0, self.at - self.clock.now)
        return late

    def close(self) -> None:
        self.closed += 1

    def answer(self) -> Answer:
        assert self.clock.now >= self.at
        return Answer(self.status, b"")


class Clock:
    """Time that passes only in pauses; keeps how long each was."""

    health: Health

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
    monkeypatch.setattr(waiting, "time", made)
    made.health = Health(made)
    monkeypatch.setattr(waiting.health, "Request", made.health)
    monkeypatch.setattr(waiting.processes, "read_process", lambda pid: SimpleNamespace(pid=pid))
    return made


class Told(Wait):
    """A server that says ``texts`` one after the other; ``end`` is the end, and so is that /health has answered."""

    def __init__(self, texts: list[str], until: str = "stopped") -> None:
        super().__init__(InstanceStore("/nowhere", "a"), "127.0.0.1", 30000, until, renew=lambda: None)
        self.texts, self.looks = list(texts), 0

    def look(self, answered: bool | None = None) -> Seen:
        self.looks += 1
        assert not answered or self._asked is None
        self.phase = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        return Seen(bool(answered) or self.phase == "end", self.phase, "active/running", 7, owns_port=True)


def test_the_end_is_told_at_once(clock: Clock) -> None:
    assert Told(["3 left", "2 left", "end"]).hold(10.0, "").done
    assert clock.pauses == [waiting.PAUSE_S] * 2


def test_news_wait_a_little(clock: Clock) -> None:
    assert Told(["3 left"]).hold(10.0, "").text == "3 left"
    assert waiting.TELL_S <= clock.now - 100.0 < waiting.TELL_S + 1


def test_nothing_new_holds_to_the_end(clock: Clock) -> None:
    Told(["3 left"]).hold(10.0, "3 left")
    assert 10.0 <= clock.now - 100.0 < 11


def test_a_call_without_time_looks_once(clock: Clock) -> None:
    assert not Told(["3 left"]).hold(0.0, "").done
    assert clock.pauses == []


def test_while_it_loads_it_is_looked_at_every_three_seconds_and_its_health_often(clock: Clock) -> None:
    clock.health.of = lambda now: (200 if now > 107.5 else 503, 0.0)
    said: list[str] = []
    server = Told(["importing", "importing", "loading weights"], until="ready")
    assert server.end(60.0, said.append).done
    assert said == ["importing", "loading weights"]
    assert server.looks == 4  # at 100, 103, 106, and when it had answered
    assert 107.5 < clock.now < 107.5 + 2 * waiting.HEALTH_PAUSE_S
    assert len(clock.health.asked) > 70


def test_a_server_that_has_fired_up_serves_while_its_health_is_still_asked(clock: Clock) -> None:
    """SGLang 0.5.23: 503 until it has generated once, then an answer that takes a second."""
    clock.health.of = lambda now: (200, 1.0) if now > 104.0 else (503, 0.0)
    server = Told(["importing", "HTTP is up, warming up", "fired up"], until="ready")
    seen = server.serving(60.0, lambda text: None)
    assert not seen.done
    asked = clock.health.asked[-1]
    assert asked <= clock.now < asked + 0.2  # the look that follows the first question without an answer
    assert server.end(60.0).done
    assert asked + 1.0 <= clock.now < asked + 1.2
    assert clock.health.asked[-1] == asked  # the same question


def test_a_server_whose_port_somebody_else_holds_does_not_serve(clock: Clock) -> None:
    """The log says "fired up" after a warm-up that a stranger on the port has answered."""
    clock.health.of = lambda now: (200, 99.0)

    class Elsewhere(Told):
        def look(self, answered: bool | None = None) -> Seen:
            return replace(super().look(answered), owns_port=False)

    with pytest.raises(AerieError) as late:
        Elsewhere(["fired up"], until="ready").serving(20.0, lambda text: None)
    assert late.value.kind.code == "start-timeout"


def test_before_it_has_fired_up_nothing_serves(clock: Clock) -> None:
    clock.health.of = lambda now: (200, 1.0)
    server = Told(["loading weights"], until="ready")
    assert server.serving(60.0, lambda text: None).done
    assert clock.now >= 101.0


def test_health_that_does_not_answer_is_asked_anew(clock: Clock) -> None:
    clock.health.of = lambda now: (200, 99.0) if now < 101.0 else (200, 0.0)
    server = Told(["fired up"], until="ready")
    server.serving(60.0, lambda text: None)
    assert server.end(60.0).done
    assert waiting.HEALTH_TIMEOUT_S < clock.now - 100.0 < waiting.HEALTH_TIMEOUT_S + 1
    assert len(clock.health.asked) == 2
    assert clock.health.closed == 1


def test_a_process_that_is_gone_is_looked_at_at_once(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting.processes, "read_process", lambda pid: None)
    Told(["importing", "end"], until="ready").end(60.0)
    assert clock.now - 100.0 < 2 * waiting.HEALTH_PAUSE_S


def test_shortly_before_the_end_nothing_is_told(clock: Clock) -> None:
    assert Told(["fired up"], until="ready").hold(10.0, "importing").text == "fired up"
    assert clock.now - 100.0 >= 10.0  # news would have ended it after three seconds


@pytest.mark.parametrize(("until", "code"), [("ready", "start-timeout"), ("stopped", "stop-timeout")])
def test_too_late_is_an_error_with_its_code(until: str, code: str) -> None:
    server = Told(["x"], until=until)
    error = waiting.too_late(server, Seen(False, "loading weights", "active/running", 7), 12.4)
    assert error.kind.code == code
    assert error.what == f"sglang-a.service is not {until} after 12 s"
    assert error.evidence == ["unit active/running, pid 7, last seen: loading weights"]
    assert error.next.startswith("journalctl -u sglang-a.service -b -e")


def test_a_start_ends_in_time_or_by_its_error(clock: Clock) -> None:
    with pytest.raises(AerieError) as late:
        Told(["importing"], until="ready").end(20.0)
    assert late.value.kind.code == "start-timeout"
    assert 20.0 <= clock.now - 100.0 < 24.0

    class Lost(Told):
        def look(self, answered: bool | None = None) -> Seen:
            return replace(super().look(answered), error=late.value)

    with pytest.raises(AerieError) as lost:
        Lost(["importing"], until="ready").end(20.0)
    assert lost.value is late.value


def looked(monkeypatch: pytest.MonkeyPatch, seen: Any, tmp_path: Path, renew: Callable[[], None]) -> Wait:
    monkeypatch.setattr(waiting.reality, "look", lambda *words, **more: seen)
    return Wait(InstanceStore(str(tmp_path), "default"), "127.0.0.1", 30000, "ready", renew=renew, cursor="c")


def test_a_server_that_is_just_ending_is_told_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Seen on an H200: its last words had been read by the look before, and the error came without any."""
    leaving = replace(LOADING, unit=replace(UNIT, active="deactivating", sub="stop-sigkill"))
    monkeypatch.setattr(
        waiting.systemd,
        "journal",
        lambda unit, **more: JournalPart(
            ["torch.OutOfMemoryError: CUDA out of memory."] if "last" in more else [], "c"
        ),
    )
    seen = looked(monkeypatch, leaving, tmp_path, lambda: None).look()
    assert seen.error is not None
    assert seen.error.evidence == ["torch.OutOfMemoryError: CUDA out of memory."]
    assert "mem_fraction_static" in seen.error.next


def test_who_answered_is_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A 200 counts only when a process of the unit holds the port."""
    monkeypatch.setattr(waiting.systemd, "journal", lambda unit, **more: JournalPart([], "c"))
    wait = looked(monkeypatch, LOADING, tmp_path, lambda: None)
    assert not wait.look(True).done
    monkeypatch.setattr(type(LOADING), "owns_port", property(lambda self: True))
    assert wait.look(True).done


def test_a_look_of_a_run_that_has_lost_its_lease_raises(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lost() -> None:
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        looked(monkeypatch, LOADING, tmp_path, lost).look()
