"""The loop that watches a long job: progress, lost connections, lost processes, time limits."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from action_made import load
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure

watched = load("watched")


def line(text: str, pid: int = 7) -> str:
    return json.dumps({"text": text, "pid": pid}) + "\n"


HELD_S = 0.2 * watched.HOLD_LOOKS


class Job:
    """A job on a host, as a script: one step a look. A step is text to append, an error, or the process' end."""

    def __init__(self, *steps: str | Exception | None, result_after: int | None = None) -> None:
        self.steps = list(steps)
        self.file = ""
        self.looks = 0
        self.alive = True
        self.result_after = result_after
        self.reconnects = 0
        self.now = 0.0
        self.said: list[str] = []

    def read(self, offset: int, pid: int | None) -> tuple[str, bool | None]:
        self.looks += 1
        step = self.steps.pop(0) if self.steps else ""
        if isinstance(step, Exception):
            raise step
        if step is None or self.looks == self.result_after:
            self.alive = False
        elif pid and not step:
            self.now += HELD_S  # as the command does that waits on the host
        if step is None:
            pass
        else:
            self.file += step
        return self.file.encode()[offset:].decode(), self.alive if pid else None

    def status(self) -> dict[str, Any]:
        done = self.result_after is not None and self.looks >= self.result_after
        return {"finished": done, "changed": done}

    def reconnect(self) -> None:
        self.reconnects += 1

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def watch(self, **changes: Any) -> Any:
        options: dict[str, Any] = {"limit_s": 100.0, "reconnect_s": 10.0, **changes}
        say: Callable[[str, float], None] = lambda text, elapsed: self.said.append(text)  # noqa: E731
        return watched.Watch(
            read=self.read, status=self.status, reconnect=self.reconnect, say=say,
            clock=lambda: self.now, sleep=self.sleep, **options,
        )  # fmt: skip


LOST = AnsibleConnectionFailure("Connection timed out\nmore")


def test_texts_are_said_once_and_the_result_is_the_module_s() -> None:
    job = Job(line("one"), line("one") + line("two é"), "", line("three"), result_after=5)
    assert job.watch().run() == {"finished": True, "changed": True}
    assert job.said == ["one", "two é", "three"]


def test_a_job_is_watched_until_it_has_come_far_enough() -> None:
    job = Job(line("one"), '{"reached": "half-way"}\n', line("never seen"), result_after=9)
    watch = job.watch(until="half-way")
    assert watch.run() == {}
    assert job.looks == 2
    ended = Job(line("one"), result_after=3)  # what ended before has its result: what was wrong
    assert ended.watch(until="half-way").run()["finished"]


def test_what_an_earlier_task_said_is_not_said_again() -> None:
    told = line("importing") + line("loading weights") + '{"reached": "ready"}\n'
    job = Job(told + line("asking 8 prompts"), line("8 of 8 answers"), result_after=3)
    job.watch(progress=watched.Progress(after="ready")).run()
    assert job.said == ["asking 8 prompts", "8 of 8 answers"]


def test_what_a_later_task_says_is_not_said_before() -> None:
    """Seen in the demo: "asking 8 prompts" under the wait, and again under the gate."""
    told = line("loading weights") + '{"reached": "ready"}\n' + line("asking 8 prompts")
    job = Job(told, result_after=9)
    watch = job.watch(until="ready", progress=watched.Progress(upto="ready"))
    assert watch.run() == {}
    assert job.said == ["loading weights"]


def test_a_watch_that_ends_on_the_way_says_so_to_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(
        watched, "Watch", lambda **given: (made.append(given["progress"]), SimpleNamespace(run=dict))[1]
    )
    action = watched.ActionModule.__new__(watched.ActionModule)
    job = {"id": "1", "results_file": "", "progress_file": "/p", "limit_s": 10.0}
    action.watch_job(job, {}, until="ready")
    action.watch_job(job, {}, after="ready")
    assert [(one.upto, one.after) for one in made] == [("ready", ""), ("", "ready")]


def test_of_many_alike_in_one_look_the_last_is_said() -> None:
    burst = "".join(line(f"fetching {n}/9 p{n}") for n in range(1, 10)) + line("installing 1/9 p9")
    job = Job(line("starting") + burst, line("installing 2/9 p8"), result_after=2)
    job.watch().run()
    assert job.said == ["starting", "fetching 9/9 p9", "installing 1/9 p9", "installing 2/9 p8"]


def test_silence_is_broken_with_what_was_said_last() -> None:
    job = Job(line("byte-compiling"), result_after=35)
    job.watch().run()
    assert 69 < job.now < 72  # a look waits for two seconds, the next follows after a tenth of one
    assert job.said == ["byte-compiling"] * 3


def test_what_brings_news_again_and_again_is_looked_at_less_after_a_while() -> None:
    job = Job(*(line(f"{n} of many") for n in range(230)), result_after=230)
    job.watch().run()
    assert 77 < job.now < 83  # two hundred looks in twenty seconds, then thirty of two


def test_half_lines_wait_for_their_end() -> None:
    whole = line("fetching 1/2 é")
    job = Job(whole[:9], whole[9:], "not json\n[1]\n", result_after=3)
    job.watch().run()
    assert job.said == ["fetching 1/2 é"]


def test_a_lost_connection_is_opened_again() -> None:
    job = Job(line("one"), LOST, LOST, line("two"), result_after=5)
    job.watch().run()
    assert job.reconnects == 2
    assert job.said == [
        "one",
        "connection lost, trying for 10s (Connection timed out)",
        "two",
        "connected again; the work went on meanwhile",
    ]


def test_a_connection_lost_for_good_is_unreachable() -> None:
    job = Job(line("one"), *[LOST] * 50)
    with pytest.raises(AnsibleConnectionFailure):
        job.watch().run()
    assert 10 < job.now < 20


def test_two_short_losses_do_not_add_up() -> None:
    job = Job(line("one"), *[LOST] * 4, line("two"), *[LOST] * 4, line("three"), result_after=11)
    job.watch().run()
    assert job.said[-2:] == ["three", "connected again; the work went on meanwhile"]


def test_a_process_that_is_gone_without_a_result_is_not_waited_for() -> None:
    job = Job(line("installing 3/9 torch"), None, "", "", "", "")
    with pytest.raises(AnsibleActionFail, match=r"watched-job-gone[\s\S]*installing 3/9 torch"):
        job.watch().run()
    assert job.now < 20


def test_the_result_is_asked_for_when_the_process_is_gone_and_now_and_then() -> None:
    job = Job(line("one"), result_after=70)
    asked: list[float] = []
    watch = job.watch(limit_s=1000.0)
    watch.status = lambda: (asked.append(job.now), job.status())[1]
    watch.run()
    assert asked[:2] == pytest.approx([11.5, 22.0], abs=1.5)
    assert len(asked) < 20


def test_a_process_that_ended_just_before_its_result_is_seen() -> None:
    job = Job(line("one"), None, result_after=3)
    assert job.watch().run()["changed"]


def test_the_time_is_bounded() -> None:
    job = Job(line("one"))
    with pytest.raises(AnsibleActionFail, match="watched-job-too-slow"):
        job.watch(limit_s=30.0).run()
    assert 30 <= job.now < 40


@pytest.mark.parametrize(("seconds", "text"), [(4.9, "4s"), (72, "1m12s"), (3725, "1h02m")])
def test_durations(seconds: float, text: str) -> None:
    assert watched.duration(seconds) == text


def test_a_terminal_s_line_ends_do_not_count() -> None:
    """`ssh -tt` writes two bytes for each line end: counted, the next line would lose its first ones and be dropped."""
    file = ""
    action = watched.ActionModule.__new__(watched.ActionModule)
    action._connection = SimpleNamespace(_shell=SimpleNamespace(quote=str))

    def execute(command: str, **_: Any) -> dict[str, str]:
        offset = int(re.search(r"tail -c \+(\d+)", command).group(1)) - 1  # type: ignore[union-attr]
        gone = "\nPROCESS GONE\n" if len(said) == 4 else ""
        return {"stdout": (file[offset:] + gone).replace("\n", "\r\n")}

    action._low_level_execute_command = execute
    progress, said = watched.Progress(), []
    for text in ("one", "two", "three", "four", ""):
        file += line(text) if text else ""
        found, alive = action._read_progress("/tmp/p", progress.offset, 7)
        said += progress.feed(found)
    assert said == ["one", "two", "three", "four"]
    assert alive is False


@pytest.mark.parametrize("new", ["text", "gone", "nothing"])
def test_a_look_waits_on_the_host_for_something_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: str
) -> None:
    """The command itself, by a real shell."""
    monkeypatch.setattr(watched, "HOLD_LOOKS", 3)
    file = tmp_path / "progress"
    file.write_text(line("one"))
    action = watched.ActionModule.__new__(watched.ActionModule)
    action._connection = SimpleNamespace(_shell=SimpleNamespace(quote=str))

    def execute(command: str, **_: Any) -> dict[str, str]:
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        assert done.stderr == ""
        return {"stdout": done.stdout}

    action._low_level_execute_command = execute
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            began, size = time.monotonic(), file.stat().st_size
            if new == "text":
                file.write_text(line("one") + line("two"))
            elif new == "gone":
                process.kill()
                process.wait()
            found = action._read_progress(str(file), size, process.pid)
            assert found == (line("two") if new == "text" else "", new != "gone")
            assert (time.monotonic() - began > 0.5) == (new == "nothing")
        finally:
            process.kill()


def test_a_look_does_what_else_it_is_told(tmp_path: Path) -> None:
    """What it prints is no progress, and that it fails is no end: the job's directory may be gone."""
    file, sign = tmp_path / "progress", tmp_path / "sign"
    file.write_text(line("one"))
    action = watched.ActionModule.__new__(watched.ActionModule)
    action._connection = SimpleNamespace(_shell=SimpleNamespace(quote=str))
    action._low_level_execute_command = lambda command, **_: {
        "stdout": subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False).stdout
    }
    also = f"echo told; touch {sign}; false"
    assert action._read_progress(str(file), 0, None, also) == (line("one"), None)
    assert sign.exists()


@pytest.mark.parametrize(("there", "alive"), [(True, None), (False, False)])
def test_a_job_that_ended_before_anybody_looked_has_no_directory_any_more(
    tmp_path: Path, there: bool, alive: bool | None
) -> None:
    """As an install that finds nothing to do, while a user is made: ten seconds passed before its end was seen."""
    action = watched.ActionModule.__new__(watched.ActionModule)
    action._connection = SimpleNamespace(_shell=SimpleNamespace(quote=str))
    action._low_level_execute_command = lambda command, **_: {
        "stdout": subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False).stdout
    }
    directory = tmp_path / "job"
    if there:
        directory.mkdir()
    assert action._read_progress(str(directory / "progress"), 0, None) == ("", alive)


@pytest.mark.parametrize(
    ("told", "seconds"), [({"changed": False}, 0.0), ({"changed": False, "elapsed_s": 41.5}, 41.5)]
)
def test_seconds_are_those_of_the_work_where_the_module_counts_them(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], seconds: float
) -> None:
    """The gates' measurement has begun when the server was ready, and is watched later."""
    monkeypatch.setattr(watched, "Watch", lambda **_: SimpleNamespace(run=lambda: dict(told)))
    action = watched.ActionModule.__new__(watched.ActionModule)
    job = {"id": "1", "results_file": "", "progress_file": "/p", "limit_s": 10.0}
    assert action.watch_job(job, {})["elapsed_s"] == seconds


@pytest.mark.parametrize(("failed", "kept"), [(False, True), (True, False)])
def test_what_ended_well_before_it_was_seen_that_far_keeps_its_result(
    monkeypatch: pytest.MonkeyPatch, failed: bool, kept: bool
) -> None:
    """The connection was lost while a server loaded; by then it had been measured, and the next task reads that."""
    outcome = {"finished": True, "failed": failed, "results_file": "/r"}
    monkeypatch.setattr(watched, "Watch", lambda **_: SimpleNamespace(run=lambda: dict(outcome)))
    action, removed = watched.ActionModule.__new__(watched.ActionModule), []
    action._forget = removed.append
    job = {"id": "1", "results_file": "/r", "progress_file": "/p", "limit_s": 10.0}
    found = action.watch_job(job, {}, until="ready")
    assert (found == {}) is kept
    assert removed == ([] if kept else ["/r"])


def test_no_module_is_called_to_learn_that_a_job_still_runs() -> None:
    """A server that loads for minutes needs its processor."""
    action = watched.ActionModule.__new__(watched.ActionModule)
    action._connection = SimpleNamespace(_shell=SimpleNamespace(quote=str))
    text = '{"started": 1, "finished": 0, "ansible_job_id": "1"}'
    action._low_level_execute_command = lambda command, **_: {"stdout": text}
    action._status = lambda *_: pytest.fail("a module")
    assert not action._result("1", "/r", {})["finished"]
    text = ""  # not there: only the module knows why
    action._status = lambda *_: {"finished": True, "failed": True}
    assert action._result("1", "/r", {})["failed"]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ('{"changed": true, "rate": 2.5}', {"changed": True, "rate": 2.5}),
        ('{"started": true, "finished": false, "ansible_job_id": "1"}', None),
        ('{"changed": true, "warnings": [{"__ansible_type": "WarningSummary"}]}', None),
        ('{"changed": tr', None),
        ("", None),
        ("[1]", None),
    ],
)
def test_a_result_is_read_where_it_is_plain(text: str, result: dict[str, Any] | None) -> None:
    assert watched.plain_result(text) == result
