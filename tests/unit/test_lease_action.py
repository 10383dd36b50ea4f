"""Whether the owner of a lease is dead, as far as this controller can know."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import time
from typing import Any

import pytest
from action_made import load

action = load("sglang_lease")
ME = {**action.identity("gpu1"), "machine": "m1"}


@pytest.mark.parametrize(
    ("changes", "dead"),
    [
        ({}, False),
        ({"start": "1"}, True),  # the pid is another process now
        ({"pid": 2**22 + 1}, True),
        ({"start": "1", "host": "elsewhere"}, False),
        ({"start": "1", "machine": "m2"}, False),
        ({"start": "1", "namespace": "pid:[9]"}, False),  # another container: its pids mean nothing here
        ({"start": "1", "machine": ""}, False),
        ({"boot": "an earlier one"}, True),
        ({"start": ""}, False),
        ({"boot": ""}, False),
    ],
)
def test_dead(changes: dict[str, Any], dead: bool) -> None:
    assert action.is_dead({**ME, **changes}, ME) is dead


def test_this_run_is_the_parent_of_the_worker() -> None:
    assert ME["pid"] == os.getppid()
    assert ME["start"] == action.start_of(os.getppid())


def told_start(answer: multiprocessing.Queue[tuple[int, str, int]]) -> None:
    """A worker whose run is killed before the worker says who asks."""
    run = multiprocessing.parent_process()
    while run and os.getppid() == run.pid:
        time.sleep(0.01)
    me = action.identity("gpu1")
    answer.put((me["pid"], me["start"], os.getppid()))


def run_that_dies(answer: multiprocessing.Queue[tuple[int, str, int]]) -> None:
    multiprocessing.get_context("fork").Process(target=told_start, args=(answer,)).start()
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_knows_its_run_also_when_that_was_killed() -> None:
    """Not the process that took the orphan in, which lives for ever."""
    fork = multiprocessing.get_context("fork")
    answer: Any = fork.Queue()
    run = fork.Process(target=run_that_dies, args=(answer,))
    run.start()
    run.join(10)
    pid, start, parent = answer.get(timeout=10)
    assert pid == run.pid != parent
    assert start == ""


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert action.start_of(child.pid) == ""
    child.wait()
