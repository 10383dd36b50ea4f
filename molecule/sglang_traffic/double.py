#!/usr/bin/python3
"""A double of a server: HTTP on one port, a second port that only listens, both on every address.

A SIGTERM is answered as SGLang does: new requests are still taken for a while, then it ends.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DRAIN_S = 4.0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    serving, rendezvous = map(int, sys.argv[1:])
    meeting = socket.create_server(("::", rendezvous), family=socket.AF_INET6, dualstack_ipv6=True)
    signal.signal(signal.SIGTERM, lambda *_: threading.Timer(DRAIN_S, os._exit, [0]).start())
    with meeting:
        ThreadingHTTPServer(("0.0.0.0", serving), Handler).serve_forever()


if __name__ == "__main__":
    main()
