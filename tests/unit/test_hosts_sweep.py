"""Test hosts: what is kept and what is swept, and that a recycled pid is never taken for ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hosts"))

from testhosts import supervise, sweep
from testhosts.files import read_json, write_json
from testhosts.layout import Layout
from testhosts.processes import Identity, start_time
from testhosts.record import Host, load, load_all


@pytest.mark.parametrize(
    ("ready", "owner_alive", "supervisor_alive", "off", "kept"),
    [
        (True, False, True, False, True),  # runs
        (True, False, False, True, True),  # powered itself off
        (True, False, False, False, False),  # its supervisor was killed, or the machine restarted
        (False, True, False, False, True),  # `up` has just begun
        (False, True, True, False, True),  # `up` waits for ssh
        (False, False, True, False, False),  # `up` was killed while it waited
        (False, False, False, False, False),  # `up` was killed before it booted
        (True, True, False, False, True),  # a snapshot is being taken
        (False, False, False, True, False),  # never answered
    ],
)
def test_keep(ready: bool, owner_alive: bool, supervisor_alive: bool, off: bool, kept: bool) -> None:
    decided = sweep.keep(ready=ready, owner_alive=owner_alive, supervisor_alive=supervisor_alive, off=off)
    assert decided is kept


def test_orphans() -> None:
    cables = {11: "ah0-11", 12: "ah0-12", 13: "ah0-13"}
    assert sweep.orphans(cables, {"a", "b", "_image-x"}, {12}, {"a"}) == (
        ["ah0-11", "ah0-13"],
        ["_image-x", "b"],
    )
    assert sweep.orphans({}, set(), {12}, {"a"}) == ([], [])


def test_start_time_survives_odd_command_names() -> None:
    rest = " ".join(["S", *(str(number) for number in range(4, 23))])
    assert start_time(f"42 (a b) c) {rest}") == 22


def test_identity_of_a_living_process() -> None:
    own = Identity.own()
    assert own.alive()
    assert own.pid == os.getpid()
    assert Identity.parse(own.as_json()) == own


def test_recycled_pid_is_never_signalled() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        real = Identity.of(child.pid)
        for other in (replace(real, start=real.start - 1), replace(real, boot="another boot")):
            assert not other.alive()
            assert not other.send(signal.SIGKILL)
        assert child.poll() is None
        assert real.send(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    assert not real.alive()
    assert not real.send(signal.SIGKILL)


@pytest.mark.parametrize("value", [None, {}, {"pid": 1}, {"pid": "x", "start": 1, "boot": ""}, []])
def test_identity_parse_refuses(value: object) -> None:
    assert Identity.parse(value) is None


@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        (int(signal.SIGHUP), supervise.REBOOT),
        (int(signal.SIGINT), supervise.POWER_OFF),
        (int(signal.SIGKILL), supervise.FAILED),
        (70 << 8, supervise.FAILED),
        (0, supervise.FAILED),
    ],
)
def test_ending(status: int, meaning: int) -> None:
    assert supervise.ending(status) == meaning


def test_record_round_trip_and_state(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.make()
    host = Host(
        "a", 11, "10.213.0.11", "10.213.0.1", "bookworm", ["images/x/root"], owner=Identity.own().as_json()
    )
    host.folder(layout).mkdir()
    host.save(layout)
    assert load(layout, "a") == host
    assert host.state(layout) == "booting"
    host.owner = None
    assert host.state(layout) == "dead"
    write_json(host.folder(layout) / "supervisor.json", Identity.own().as_json())
    assert host.state(layout) == "booting"
    host.ready = True
    assert host.state(layout) == "running"
    host.off_marker(layout).touch()
    assert host.state(layout) == "off"


def test_half_written_records_are_no_records(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.make()
    for name, text in (("a", '{"name": "a"'), ("b", '{"name": "b"}'), (".gone-c", "{}")):
        (layout.hosts / name).mkdir()
        (layout.hosts / name / "host.json").write_text(text)
    (layout.hosts / "d").mkdir()
    assert load_all(layout) == []
    assert read_json(layout.hosts / "a" / "host.json") is None
