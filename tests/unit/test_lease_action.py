"""Whether the owner of a lease is dead, as far as this controller can know."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lease_action", ROOT / "plugins/action/sglang_lease.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


action = load()
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


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert action.start_of(child.pid) == ""
    child.wait()
