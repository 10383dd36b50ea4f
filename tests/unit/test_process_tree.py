"""Trees of processes: real ones of this machine, and tables that no test could make."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible.module_utils.aerie.strangers.process_tree import (
    Member,
    descendants,
    living,
    parse_stat,
    read_member,
    read_table,
    send,
    starter_of,
    top_of,
)

PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"


@pytest.fixture
def tree() -> Iterator[list[Member]]:
    """A shell in a group of its own, which starts a python, which starts another."""
    shell = subprocess.Popen(
        ["sh", "-c", f'"$0" -c "{PARENT}"; sleep 60', sys.executable], start_new_session=True
    )
    deadline = time.monotonic() + 20
    while len(found := descendants(read_table(), shell.pid)) < 3 or len({one.exe for one in found}) != 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield found
    os.killpg(shell.pid, signal.SIGKILL)
    shell.wait()


def test_the_tree_is_the_process_and_all_below_it(tree: list[Member]) -> None:
    table = read_table()
    assert [one.pid for one in tree[:1]] == [table[tree[1].pid].parent]
    assert os.getpid() not in {one.pid for one in tree}
    assert {one.pid for one in descendants(table, os.getpid())} >= {one.pid for one in tree}


def test_from_a_worker_to_its_launcher_but_not_to_the_script_around(tree: list[Member]) -> None:
    shell, launcher, worker = tree
    table = read_table()
    assert top_of(table, worker.pid) == table[launcher.pid]
    assert starter_of(table, launcher) == table[shell.pid]
    assert starter_of(table, shell) is None
    assert top_of(table, 1 << 30) is None


def test_a_signal_reaches_that_very_process_only(tree: list[Member]) -> None:
    worker = tree[-1]
    other = Member(**{**vars(worker), "start_ticks": worker.start_ticks + 1})
    assert not send(other, signal.SIGKILL)
    assert living([worker, other]) == [worker]
    assert send(worker, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while living([worker]):
        assert time.monotonic() < deadline
    assert not send(worker, signal.SIGKILL)


def test_a_zombie_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 10
    while (seen := read_member(child.pid)) is None or not seen.ended:
        assert time.monotonic() < deadline
    assert living([seen]) == []
    assert not send(seen, signal.SIGTERM)
    child.wait()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7 (a) b) (c) S 3 7 7 0 -1 " + "0 " * 13 + "555 1 1", Member(7, 555, 3, 7, "S")),
        ("7 (python) Z 1 6 " + "0 " * 16 + "9 0", Member(7, 9, 1, 6, "Z")),
        ("7 (python) S 1", None),
        ("", None),
    ],
)
def test_stat(text: str, expected: Member | None) -> None:
    assert parse_stat(text) == expected


def test_a_pid_used_again_adopts_no_older_process() -> None:
    table = {10: Member(10, 500, 1, 10), 11: Member(11, 400, 10, 10), 12: Member(12, 600, 10, 10)}
    assert [one.pid for one in descendants(table, 10)] == [10, 12]


def test_a_process_that_is_gone(tmp_path: Path) -> None:
    assert read_member(5, tmp_path) is None
    assert read_table(tmp_path) == {}
