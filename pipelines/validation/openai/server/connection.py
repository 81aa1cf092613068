"""Send requests to an OpenAI-compatible server, and name every way in which it may fail.

Each request has a connection of its own: a server may close one that waits just when it is used again, which
would look like a fault. A busy server (429, 503) is asked again a few times, as late as it says.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import httpx

from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    ForbiddenError,
    InvalidRequestError,
    ModelNotFoundError,
    RateLimitError,
    RequestTimeoutError,
    ServerBusyError,
    ServerUnavailableError,
    TransportError,
    UnauthorizedError,
)
from pipelines.validation.openai.server.endpoint import Endpoint
from pipelines.validation.stopping import cancelled_when_stopped, pause

_STATUSES: dict[int, type[DraftproofError]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: ModelNotFoundError,
    408: RequestTimeoutError,
    429: RateLimitError,
    502: ServerUnavailableError,
    503: ServerBusyError,
    504: RequestTimeoutError,
    529: ServerBusyError,
}
_BUSY = (429, 503, 529)
_MOST_RETRIES = 5
_LONGEST_WAIT_S = 60.0
_CONNECT_S = 10.0
_LONGEST_EXCERPT = 300

ENDED_EARLY = "a stream ended early"
"""Words of the error that a stream without ``data: [DONE]`` is."""


class Connection:
    """Connections to one server, for any number of threads.

    Args:
        endpoint: The server.
        timeout_s: Longest wait for the next bytes of an answer.
    """

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._key = endpoint.key
        self._url = endpoint.url
        self._timeout_s = timeout_s
        headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
        self._http = httpx.Client(
            base_url=endpoint.url,
            headers=headers,
            trust_env=False,  # .netrc would add a password
            timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S),
            limits=httpx.Limits(max_keepalive_connections=0),
        )
        self._lock = threading.Lock()
        self.num_retries = 0
        """Number of requests that were sent again because the server was busy."""

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def get(self, path: str) -> str:
        """Return what the server has at a path.

        Raises:
            DraftproofError: It has nothing there, or does not answer.
        """
        with self._send("GET", path, None) as response:
            return response.read().decode("utf-8", errors="replace")

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return the whole answer, which is a JSON object.

        Raises:
            DraftproofError: The server refuses it, does not answer, or not with an object.
        """
        with self._send("POST", path, body) as response:
            return self._object(response.read())

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Send a request and yield the events of the answer until ``[DONE]``.

        Raises:
            DraftproofError: As ``post``; the stream ends before ``[DONE]``, or has an error.
        """
        with self._send("POST", path, {**body, "stream": True}) as response:
            for line in response.iter_lines():
                if not line.startswith("data:"):
                    continue
                data = line.removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                event = self._object(data)
                if event.get("error"):
                    raise EngineFailedError(
                        "the server failed in the middle of a stream",
                        values=self._excerpt(json.dumps(event["error"])),
                    )
                yield event
        raise TransportError(ENDED_EARLY, values=self._url, limit="a stream ends with data: [DONE]")

    @contextmanager
    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> Iterator[httpx.Response]:
        for attempt in range(_MOST_RETRIES + 1):
            sockets = _Sockets()
            noted = {"trace": sockets.note}
            try:
                with (
                    cancelled_when_stopped(sockets.end),
                    self._http.stream(method, path, json=body, extensions=noted) as response,
                ):
                    if response.status_code == httpx.codes.OK:
                        yield response
                        return
                    response.read()
            except httpx.HTTPError as error:
                raise self._broken(error) from None
            if response.status_code not in _BUSY or attempt == _MOST_RETRIES:
                raise self._refused(response)
            with self._lock:
                self.num_retries += 1
            pause(_wait_s(response, attempt))

    def _object(self, content: str | bytes) -> dict[str, Any]:
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            document = None
        if isinstance(document, dict):
            return document
        text = content if isinstance(content, str) else content.decode("utf-8", errors="replace")
        raise TransportError(
            "the server answered with something else than a JSON object",
            values=self._excerpt(text),
            limit="OpenAI's API",
        )

    def _broken(self, error: httpx.HTTPError) -> DraftproofError:
        detail = self._excerpt(f"{self._url}: {type(error).__name__} {error}")
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return ServerUnavailableError("no server answers", values=detail)
        if isinstance(error, httpx.TimeoutException):
            limit = f"{self._timeout_s:g} s without a byte"
            return RequestTimeoutError("the server fell silent", values=detail, limit=limit)
        return TransportError("the server closed the connection early", values=detail)

    def _refused(self, response: httpx.Response) -> DraftproofError:
        status = response.status_code
        default = EngineFailedError if status >= 500 else InvalidRequestError
        return _STATUSES.get(status, default)(
            f"the server answered with HTTP status {status}",
            values=self._excerpt(_message_of(response)),
            remedy="check address, model and key" if status in (401, 403, 404) else "",
        )

    def _excerpt(self, text: str) -> str:
        """Return the beginning of a text without the key, which servers may quote."""
        hidden = text.replace(self._key, "[key]") if self._key else text
        return hidden[:_LONGEST_EXCERPT]


class _Sockets:
    """The connection of one request, which another thread may end."""

    def __init__(self) -> None:
        self._open: list[socket.socket] = []
        self._is_ended = False

    def note(self, event: str, info: Mapping[str, Any]) -> None:
        """Take the connection from an event of httpcore's extension ``trace``."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._open.append(info["return_value"].get_extra_info("socket"))
            if self._is_ended:
                self.end()

    def end(self) -> None:
        """Let the server's bytes end here, which wakes the thread that waits for more."""
        self._is_ended = True
        for each in self._open:
            with suppress(OSError):  # it has ended; a TLS socket's own ``shutdown`` would break its reader
                socket.socket.shutdown(each, socket.SHUT_RDWR)


def _message_of(response: httpx.Response) -> str:
    """Return the message of an error in OpenAI's form, else all that the server sent."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text


def _wait_s(response: httpx.Response, attempt: int) -> float:
    try:
        wanted_s = float(int(response.headers.get("Retry-After", "")))
    except ValueError:  # none, or a date
        wanted_s = 2.0**attempt
    return min(max(wanted_s, 0.0), _LONGEST_WAIT_S)
