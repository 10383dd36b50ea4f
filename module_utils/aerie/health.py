"""Asking a server whether it lives. Only fields that are named here are read from its answers: ``/server_info``
holds API keys (sglang #30166) and is never returned whole."""

from __future__ import annotations

import http.client
import json
import select
from dataclasses import dataclass
from typing import Any

LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class Answer:
    """An HTTP answer, or why there is none. ``status`` 0: refused, timed out or cut off."""

    status: int
    body: bytes
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.status == 200

    def json(self) -> Any:
        """The decoded body, or None."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    def describe(self) -> str:
        """``HTTP 503`` or ``connection refused``."""
        return f"HTTP {self.status}" if self.status else self.error


def url_host(host: str) -> str:
    """The host part of the URL by which this machine reaches a server bound to ``host``."""
    address = LOOPBACK.get(host, host)
    return f"[{address}]" if ":" in address else address


class Request:
    """A GET that has been sent to the server on this host; :meth:`answer` waits for what comes back.

    SGLang's /health generates a token and looks for it once a second, so a caller does its other work meanwhile.
    """

    def __init__(self, host: str, port: int, path: str, *, timeout: float = 10.0, api_key: str = "") -> None:
        self._connection = http.client.HTTPConnection(LOOPBACK.get(host, host), port, timeout=timeout)
        self._failed: Answer | None = None
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            self._connection.request("GET", path, headers=headers)
        except (OSError, http.client.HTTPException) as error:
            self._failed = _no_answer(error)

    def pending(self, seconds: float) -> bool:
        """Whether nothing has come back yet, after waiting ``seconds`` for it."""
        if self._failed is not None or self._connection.sock is None:
            return False
        return not select.select([self._connection.sock], [], [], seconds)[0]

    def close(self) -> None:
        """Give it up."""
        self._connection.close()

    def answer(self) -> Answer:
        """The answer, or why there is none. Waits ``timeout`` seconds at most for each part of it."""
        try:
            if self._failed is not None:
                return self._failed
            response = self._connection.getresponse()
            return Answer(response.status, response.read(8 << 20))
        except (OSError, http.client.HTTPException) as error:
            return _no_answer(error)
        finally:
            self._connection.close()


def _no_answer(error: Exception) -> Answer:
    refused = isinstance(error, ConnectionRefusedError)
    return Answer(0, b"", "connection refused" if refused else str(error) or repr(error))


def get(host: str, port: int, path: str, *, timeout: float = 10.0, api_key: str = "") -> Answer:
    """GET a path of the server on this host. SGLang's /health generates a token: allow 5 s and more."""
    return Request(host, port, path, timeout=timeout, api_key=api_key).answer()


def live_accept_length(info: Any) -> float | None:
    """``avg_spec_accept_length`` since start, from the answer of /server_info.

    Up to 0.4.6 the key stands at the top, later in ``internal_states[0]``; it is absent until the first decode log
    interval and without speculation.
    """
    if not isinstance(info, dict):
        return None
    states = info.get("internal_states")
    place = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else info
    value = place.get("avg_spec_accept_length")
    return float(value) if isinstance(value, (int, float)) else None
