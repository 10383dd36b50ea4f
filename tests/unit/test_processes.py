"""Reading /proc: tables as the kernel prints them, and this very process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

from ansible.module_utils.aerie import processes

# Captured on Linux 6.18 (x86_64): a listener on 127.0.0.1:30000, one on all IPv4 addresses, an established one.
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000   999        0 4242 1 0000 100 0 0 10 0
   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 17 1 0000 100 0 0 10 0
   2: 0100007F:7530 0100007F:C350 01 00000000:00000000 00:00000000 00000000   999        0 4300 1 0000 20 4 30 10 -1
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when
   0: 00000000000000000000000000000000:5727 00000000000000000000000000000000:0000 0A 0:0 00:0000 0 999 0 9 1
   1: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 0:0 00:0000 0 999 0 10 1
"""


def test_listeners_of_the_kernels_table() -> None:
    assert processes.parse_listeners(TCP) == [("127.0.0.1", 30000, 4242), ("0.0.0.0", 22, 17)]
    assert processes.parse_listeners(TCP6) == [("::", 22311, 9), ("::1", 8080, 10)]


def test_own_listener_is_found_with_its_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (found,) = processes.listeners(port)
        assert (found.address, found.port, found.pids) == ("127.0.0.1", port, (os.getpid(),))
        assert str(found) == f"127.0.0.1:{port}"
        assert processes.listeners(port, pids=[1]) == []
    assert processes.listeners(port) == []


def test_a_process_is_described_as_it_was_started() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(30)", '50% "x" ü'],
        env={"MARK": "a=b", "PATH": "/bin"},
    )
    try:
        # The kernel fills in the arguments a moment after exec has closed the parent's pipe.
        deadline = time.monotonic() + 10
        while not (found := processes.read_process(child.pid)) or not found.command:
            assert time.monotonic() < deadline
        assert found.command[1:] == ["-c", "import time; time.sleep(30)", '50% "x" ü']
        assert processes.seconds_since_start(found) < 30
        assert f"pid {child.pid}" in found.describe()
        assert 0 < (processes.memory_bytes([child.pid]) or 0) < (processes.memory_bytes([os.getpid()]) or 0)
        environment = processes.read_environment(child.pid)
        assert environment is not None
        assert environment["MARK"] == "a=b"
    finally:
        child.kill()
        child.wait()
    assert processes.read_process(child.pid) is None
    assert processes.read_environment(child.pid) is None
    assert processes.memory_bytes([child.pid]) is None
