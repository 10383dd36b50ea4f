#!/usr/bin/env python3
"""From outside the host: what a new connection gives, and whether one that is kept alive goes on.

probe.py new HOST PORT           prints open, refused or silent
probe.py hold HOST PORT SECONDS  asks again and again over one connection; prints how many answers came
"""

from __future__ import annotations

import http.client
import socket
import sys
import time


def new(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), timeout=3).close()
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return "silent"
    return "open"


def hold(host: str, port: int, seconds: float) -> int:
    connection = http.client.HTTPConnection(host, port, timeout=5)
    connection.connect()
    connection.auto_open = 0  # type: ignore[attr-defined]  # a broken connection is an error, not a new one
    answers, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        connection.request("GET", "/")
        if connection.getresponse().read() != b"ok":
            raise SystemExit("another answer")
        answers += 1
        time.sleep(0.1)
    return answers


if __name__ == "__main__":
    what, where, number, *rest = sys.argv[1:]
    print(new(where, int(number)) if what == "new" else hold(where, int(number), float(rest[0])))
