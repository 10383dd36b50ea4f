"""A request that is sent first and answered later, and what stands for an answer when there is none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from ansible.module_utils.aerie import health


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        yield server


def test_the_caller_works_while_the_server_thinks(listener: socket.socket) -> None:
    asked = health.Request("0.0.0.0", listener.getsockname()[1], "/health", timeout=5)
    connection, _ = listener.accept()
    with connection:
        assert b"GET /health" in connection.recv(1000)  # it is on its way before anybody waits for the answer
        threading.Timer(
            0.05, connection.sendall, [b"HTTP/1.1 503 Loading\r\nContent-Length: 0\r\n\r\n"]
        ).start()
        answer = asked.answer()
    assert (answer.status, answer.describe()) == (503, "HTTP 503")


@pytest.mark.parametrize("how", ["refused", "cut off", "silent"])
def test_no_answer_is_said_in_words(listener: socket.socket, how: str) -> None:
    port = listener.getsockname()[1]
    if how == "refused":
        listener.close()
    asked = health.Request("127.0.0.1", port, "/health", timeout=0.2)
    if how == "cut off":
        listener.accept()[0].close()
    answer = asked.answer()
    assert not answer.ok
    assert answer.describe()
    assert (how == "refused") == (answer.describe() == "connection refused")
