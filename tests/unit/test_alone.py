"""One load at a time: the second waits, and says so; what a killed one held is free."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.module_utils.aerie.errors import AerieError
from ansible.module_utils.aerie.measure.alone import only_load

URL = "http://127.0.0.1:30000"
HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_load_waits_for_the_first_and_a_killed_one_is_gone(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "aerie-load-30000.lock")], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 2:
            os.kill(holder.pid, signal.SIGKILL)

    try:
        with pytest.raises(AerieError) as caught, only_load(URL, 0.0, said.append, tmp_path, 0.01):
            pass
        assert caught.value.kind.code == "load-busy"
        assert said == []
        with only_load("http://127.0.0.1:30001", 0.0, say, tmp_path, 0.01):  # another server
            pass
        with only_load(URL, 20.0, say, tmp_path, 0.05):
            pass
        assert "earlier load" in said[0]
    finally:
        holder.kill()
        holder.wait()
