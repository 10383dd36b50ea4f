"""Taking over, with real processes: exactly the tree ends, drained where it drains, killed where it does not."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.instance.state import InstanceStore
from ansible.module_utils.aerie.strangers import takeover
from ansible.module_utils.aerie.strangers.process_tree import descendants, read_member, read_table
from ansible.module_utils.aerie.strangers.takeover import Takeover

# A server that ends on SIGTERM, or does not, with a worker below it that knows nothing of signals.
SERVER = """
import signal, socket, subprocess, sys, time
stubborn = sys.argv[2] == "stubborn"
signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn else lambda *_: (worker.terminate(), sys.exit(0)))
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("up", flush=True)
time.sleep(60)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


Start = Callable[..., tuple[subprocess.Popen[str], int]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(how: str = "drains", wrapper: bool = False) -> tuple[subprocess.Popen[str], int]:
        port = free_port()
        words = [sys.executable, "-c", SERVER, str(port), how]
        if wrapper:
            words = ["sh", "-c", 'while :; do "$@"; done', "again", *words]
        one = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(one)
        assert one.stdout is not None
        assert one.stdout.readline() == "up\n"
        return one, port

    yield begin
    for one in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)
        one.wait()


@pytest.fixture
def store(tmp_path: Path) -> InstanceStore:
    return InstanceStore(str(tmp_path / "state"), "default")


def token_of(pid: int) -> str:
    found = read_member(pid)
    assert found is not None
    return found.token


def run(store: InstanceStore, token: str, port: int, bound: float = 30.0) -> list[dict[str, Any]]:
    """What the action plugin does: look until it is done, each time as a new process would."""
    looks: list[dict[str, Any]] = []
    deadline = time.monotonic() + 20
    while not looks or not looks[-1]["done"]:
        assert time.monotonic() < deadline, looks
        looks.append(Takeover(store, token, port, bound).look())
        time.sleep(0.05)
    return looks


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 10
    while [pid for pid in pids if (one := read_member(pid)) is not None and not one.ended]:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_server_drains_and_its_note_stays(start: Start, store: InstanceStore) -> None:
    server, port = start()
    bystander, _ = start()
    tree = [one.pid for one in descendants(read_table(), server.pid)]
    token = token_of(server.pid)
    looks = run(store, token, port)
    assert looks[-1] == {"done": True, "text": f"pid {server.pid} taken over: all of it has ended", "acted": True,
                         "killed": False}  # fmt: skip
    assert len(tree) == 2
    assert gone(tree)
    assert bystander.poll() is None
    (note,) = takeover.notes(store)
    assert note["command"][-2:] == [str(port), "drains"]
    assert note["cwd"] == str(Path.cwd())
    assert takeover.notes_path(store).stat().st_mode & 0o777 == 0o600
    (line,) = takeover.said_notes(store)
    assert line.startswith("before Aerie (")
    assert "&&" in line
    again = Takeover(store, token, port, 30).look()
    assert (again["done"], again["acted"]) == (True, False)


def test_what_does_not_drain_is_killed_after_the_bound_only(start: Start, store: InstanceStore) -> None:
    server, port = start("stubborn")
    tree = [one.pid for one in descendants(read_table(), server.pid)]
    with socket.create_connection(("127.0.0.1", port)):
        first = Takeover(store, token_of(server.pid), port, 0.5)
        assert not first.look()["done"]
        waiting = Takeover(store, token_of(server.pid), port, 30).look()
        assert "1 connection open, 2 processes left" in waiting["text"]
    assert server.poll() is None
    time.sleep(0.6)
    looks = run(store, token_of(server.pid), port, 0.5)
    assert "sent SIGKILL to 2 processes" in looks[0]["text"]
    assert looks[-1]["killed"]
    assert gone(tree)


def test_a_script_that_starts_it_again_ends_first(start: Start, store: InstanceStore) -> None:
    shell, port = start(wrapper=True)
    looks = run(store, token_of(shell.pid), port)
    assert looks[-1]["done"]
    assert not looks[-1]["killed"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_dead_runs_takeover_is_carried_on(start: Start, store: InstanceStore) -> None:
    server, port = start()
    token = token_of(server.pid)
    Takeover(store, token, port, 30).look()
    assert takeover.under_way(store) == [token]
    assert run(store, token, port)[-1]["done"]
    assert takeover.under_way(store) == []


def test_after_a_reboot_pids_mean_nothing(
    start: Start, store: InstanceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, port = start("stubborn")
    token = token_of(server.pid)
    Takeover(store, token, port, 0.0).look()
    monkeypatch.setattr(takeover, "boot_id", lambda: "another")
    assert takeover.under_way(store) == []
    assert "started anew" in Takeover(store, token, port, 0.0).look()["text"]
    assert server.poll() is None


def test_another_start_time_is_left_alone(start: Start, store: InstanceStore) -> None:
    server, port = start()
    found = read_member(server.pid)
    assert found is not None
    for look in ("foreseen", "look"):
        result = getattr(Takeover(store, f"{server.pid}:{found.start_ticks + 1}", port, 1), look)()
        assert result["done"]
        assert not result["acted"]
        assert "another start time" in result["text"]
    assert "is gone" in Takeover(store, "99999999:5", port, 1).look()["text"]
    assert server.poll() is None
    assert not takeover.notes_path(store).exists()


def test_check_mode_says_it_and_does_nothing(start: Start, store: InstanceStore) -> None:
    server, port = start()
    seen = Takeover(store, token_of(server.pid), port, 1).foreseen()
    assert (seen["acted"], seen["done"]) == (True, False)
    assert server.poll() is None
    assert not store.root.exists()


def test_a_run_does_not_take_over_its_own_parents(store: InstanceStore) -> None:
    with pytest.raises(AerieError) as refused:
        Takeover(store, token_of(os.getpid()), 1, 1).look()
    assert refused.value.kind.code == "takeover-of-ourselves"
