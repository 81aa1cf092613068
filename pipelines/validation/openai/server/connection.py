"""Send requests to an OpenAI-compatible server, and name every way in which it may fail.

Each request has a connection of its own: a server may close one that waits just when it is used again, which
would look like a fault. A busy server (429, 503) is asked again a few times, as late as it says.
"""

from __future__ import annotations

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
from pipelines.openai_stream import AnswerReader, Event, UnreadableError
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


class Connection:
    """Connections to one server, for any number of threads.

    Args:
        endpoint: The server.
        timeout_s: Longest wait for the next bytes of an answer.
    """

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._key = endpoint.key
        self._url = endpoint.url
        self.timeout_s = timeout_s
        """Longest wait for the next bytes of an answer; may be changed."""
        headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
        self._http = httpx.Client(
            base_url=endpoint.url,
            headers=headers,
            trust_env=False,  # .netrc would add a password
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

    def post(self, path: str, body: Mapping[str, Any]) -> Iterator[Event]:
        """Send a request and yield the events of the answer; one in one piece is a single event.

        Args:
            path: Path with ``/v1``.
            body: The request; with ``stream`` the answer comes in events.

        Raises:
            DraftproofError: The server refuses it, does not answer, or not in the form of OpenAI's API.
        """
        reader = AnswerReader(is_stream=bool(body.get("stream")), has_items=path.endswith("/responses"))
        unreadable = None
        with self._send("POST", path, body) as response:
            try:
                for data in response.iter_bytes():
                    yield from map(self._answering, reader.read(data))
                    if reader.is_done:  # whenever the server closes the connection
                        break
                yield from map(self._answering, reader.end())
            except UnreadableError as error:
                unreadable = error
        if unreadable is not None:  # raised here, so that nothing refers to what the server quoted
            raise TransportError(
                f"the server sent {unreadable.fault}: {self._excerpt(f'{self._url} {unreadable.detail}')}"
            )

    def _answering(self, event: Event) -> Event:
        if event.error:
            raise EngineFailedError(f"the server sent an error for an answer: {self._excerpt(event.error)}")
        return event

    @contextmanager
    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> Iterator[httpx.Response]:
        for attempt in range(_MOST_RETRIES + 1):
            sockets = _Sockets()
            how: dict[str, Any] = {
                "extensions": {"trace": sockets.note},
                "timeout": httpx.Timeout(self.timeout_s, connect=_CONNECT_S),
            }
            try:
                with (
                    cancelled_when_stopped(sockets.end),
                    self._http.stream(method, path, json=body, **how) as response,
                ):
                    if response.status_code == httpx.codes.OK:
                        yield response
                        return
                    response.read()
            except httpx.HTTPError as error:
                raise self._broken(error) from None
            if response.status_code not in _BUSY or attempt == _MOST_RETRIES:
                raise self._refused(response, path)
            with self._lock:
                self.num_retries += 1
            pause(_wait_s(response, attempt))

    def _broken(self, error: httpx.HTTPError) -> DraftproofError:
        detail = self._excerpt(f"{self._url}: {type(error).__name__} {error}")
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return ServerUnavailableError(f"no server answers: {detail}")
        if isinstance(error, httpx.TimeoutException):
            return RequestTimeoutError(f"the server fell silent for {self.timeout_s:g} s: {detail}")
        return TransportError(f"the server closed the connection early: {detail}")

    def _refused(self, response: httpx.Response, path: str) -> DraftproofError:
        status = response.status_code
        default = EngineFailedError if status >= 500 else InvalidRequestError
        return _STATUSES.get(status, default)(
            f"the server answered with HTTP status {status}: "
            f"{self._excerpt(f'{self._url}{path}: {_message_of(response)}')}",
            "check address, model and key" if status in (401, 403, 404) else "",
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
