"""HTTP to one SGLang server: a small typed client, and many requests at a bounded concurrency.

`http.client` is used and not `open_url`: a proxy in the environment must never come between the module and a
server on its own host, and the deadline must hold for the whole answer, not for each read.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from ..errors import AerieError, ErrorKind

HTTP_STATUS = ErrorKind(
    "accept-http-status",
    "The server answered a request with an HTTP error. 401 means a missing or wrong API key, 400 usually a "
    "prompt longer than the context.",
)
UNREACHABLE = ErrorKind(
    "accept-server-unreachable",
    "Nothing answers HTTP at the URL, or the connection broke in the middle of an answer.",
)
TIMED_OUT = ErrorKind(
    "accept-generation-timeout",
    "The server accepted a request and did not finish it in time. A server whose schedulers hang can go on "
    "answering its health endpoint for hours.",
)
BAD_URL = ErrorKind("accept-url-invalid", "The URL is not of the form http://HOST:PORT.")

_BODY_LIMIT = 64 * 1024 * 1024
_SHOWN = 300


class Client(Protocol):
    """What a measurement needs of a server."""

    def get(self, path: str, timeout: float) -> tuple[int, Any]:
        """Status and JSON body (None when the body is no JSON)."""

    def post(self, path: str, body: dict[str, Any], timeout: float) -> Any:
        """JSON body of a 200 answer; any other status is an error."""


@dataclass(frozen=True)
class Timed:
    """One answer and how long it took, in seconds."""

    index: int
    body: Any
    seconds: float


class HttpClient:
    """`Client` over plain HTTP; one connection for each request."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme != "http" or not parts.hostname or port is None or parts.path not in ("", "/"):
            raise BAD_URL.error(
                f"{url!r} is not a server's URL",
                next="write it as http://127.0.0.1:PORT",
            )
        self.url = f"http://{parts.netloc}"
        self._host, self._port, self._key = parts.hostname, port, api_key

    def get(self, path: str, timeout: float) -> tuple[int, Any]:
        status, raw = self._exchange("GET", path, None, timeout)
        try:
            return status, json.loads(raw)
        except ValueError:
            return status, None

    def post(self, path: str, body: dict[str, Any], timeout: float) -> Any:
        status, raw = self._exchange("POST", path, json.dumps(body).encode(), timeout)
        if status != 200:
            raise HTTP_STATUS.error(
                f"POST {path} was answered with HTTP {status}",
                evidence=[self._short(raw)],
                next=_advice(status, path),
            )
        try:
            return json.loads(raw)
        except ValueError as error:
            raise HTTP_STATUS.error(
                f"POST {path} was answered with something that is not JSON",
                evidence=[self._short(raw)],
                next="check that the URL is an SGLang server's",
            ) from error

    def ask(self, path: str, body: dict[str, Any], timeout: float) -> tuple[int, str]:
        """Status and text of an answer that is no JSON, at most its first words."""
        status, raw = self._exchange("POST", path, json.dumps(body).encode(), timeout)
        return status, self._short(raw)

    def _exchange(self, method: str, path: str, body: bytes | None, timeout: float) -> tuple[int, bytes]:
        deadline = time.monotonic() + timeout
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        try:
            connection.connect()
            sock = connection.sock  # http.client forgets it once the server says it will close
            connection.request(method, path, body=body, headers=headers)
            sock.settimeout(_remaining(deadline))
            response = connection.getresponse()
            return response.status, _read(response, sock, deadline)
        except TimeoutError as error:
            raise TIMED_OUT.error(
                f"{method} {path} was not answered within {timeout:.0f} s",
                evidence=[f"server {self.url}"],
                next="read the server's journal; `py-spy dump` of its scheduler shows where it hangs",
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise UNREACHABLE.error(
                f"{method} {path} got no answer from {self.url}",
                evidence=[f"{type(error).__name__}: {error}"],
                next="systemctl status of the instance's unit, and its journal",
            ) from error
        finally:
            connection.close()

    def _short(self, raw: bytes) -> str:
        text = " ".join(raw[: 4 * _SHOWN].decode("utf-8", "replace").split())
        if self._key:
            text = text.replace(self._key, "********")
        return text[:_SHOWN] or "(empty body)"


def generate_all(
    client: Client,
    bodies: Sequence[dict[str, Any]],
    *,
    concurrency: int,
    request_timeout: float,
    deadline: float,
    on_answer: Callable[[Timed], None],
) -> None:
    """POST each body to /generate, at most ``concurrency`` at a time, and hand over answers as they come.

    deadline: of the whole, on time.monotonic()'s clock. The first failure ends the run: what is in flight is
    waited for (bounded by its own timeout), nothing new is sent, and the failure is raised.
    """

    def ask(index: int) -> Timed:
        left = deadline - time.monotonic()
        if left <= 0:
            raise _out_of_time(index)
        start = time.monotonic()
        body = client.post("/generate", bodies[index], min(request_timeout, left))
        return Timed(index, body, time.monotonic() - start)

    with ThreadPoolExecutor(max_workers=concurrency, thread_name_prefix="accept") as pool:
        waiting: set[Future[Timed]] = {pool.submit(ask, index) for index in range(len(bodies))}
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    on_answer(future.result())
        except BaseException:
            for future in waiting:
                future.cancel()
            raise


def explain_timeout(client: Client, error: AerieError) -> AerieError:
    """Add what the health endpoint says to a generation timeout: "healthy but mute" is the case to name."""
    try:
        status, _ = client.get("/health", 5.0)
        health = f"/health answers HTTP {status}"
    except AerieError as failure:
        status, health = 0, f"/health: {failure.what}"
    what = error.what
    if status == 200:
        what += ": the server answers health, but not generation"
    return AerieError(error.kind, what, [*error.evidence, health], error.next)


def _read(response: http.client.HTTPResponse, sock: socket.socket, deadline: float) -> bytes:
    """Read the body in pieces, so that a server that drips bytes cannot outlive the deadline."""
    pieces: list[bytes] = []
    size = 0
    while True:
        sock.settimeout(_remaining(deadline))
        piece = response.read1(65536)
        if not piece:
            break
        pieces.append(piece)
        size += len(piece)
        if size > _BODY_LIMIT:
            raise http.client.HTTPException(f"the answer is longer than {_BODY_LIMIT} bytes")
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(pieces)


def _remaining(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _out_of_time(index: int) -> AerieError:
    return TIMED_OUT.error(
        f"the time for the whole measurement ran out before request {index} was sent",
        next="raise timeout, or lower num_prompts or max_new_tokens",
    )


def _advice(status: int, path: str) -> str:
    if status in (401, 403):
        return "give the server's key in api_key"
    if status == 404:
        return f"check the URL: an SGLang server has {path}"
    if status == 503:
        return "the server is starting or draining: wait until /health is 200"
    return "read the server's journal for this moment"
