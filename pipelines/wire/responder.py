"""Sends the responses to one request in order and guarantees exactly one last response.

A client whose last response is missing waits forever. So each request gets a ``Responder`` before any work is
done, and every path ends in ``send(is_final=True)`` or ``fail``. Later responses are dropped.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Generic, Protocol, TypeVar

from pipelines.errors import DraftproofError, InternalError, RequestCancelledError

_LOG = logging.getLogger(__name__)


Answer = TypeVar("Answer", contravariant=True)


class Outlet(Protocol[Answer]):
    """Delivers the responses to one request to the client, in order. Thread-safe."""

    def send(self, answer: Answer, *, is_final: bool) -> None:
        """Deliver one response; it must not change afterwards."""

    def fail(self, error: DraftproofError) -> None:
        """Deliver an error as the last response."""

    def watch(self, on_gone: Callable[[], object]) -> None:
        """Register a callback for a client that disconnects before the last response."""


class Responder(Generic[Answer]):
    """Answers one request. Thread-safe.

    Args:
        outlet: Delivers responses to the client.
        request_id: Id of the request for errors and the log.
    """

    def __init__(self, outlet: Outlet[Answer], request_id: str) -> None:
        self._outlet = outlet
        self._request_id = request_id
        self._lock = threading.Lock()
        self._is_closed = False

    def follow(self, work: Future[None]) -> None:
        """Cancel the work when the client disconnects, and end the answer when the work ends.

        Args:
            work: Sends the responses. However it ends, even if cancelled before it started, the client gets a
                last response.
        """
        self._outlet.watch(work.cancel)
        work.add_done_callback(self._end)

    def send(self, answer: Answer, *, is_final: bool) -> None:
        """Send one response."""
        if self._open(close=is_final):
            self._outlet.send(answer, is_final=is_final)

    def fail(self, error: BaseException) -> None:
        """End with an error; an unexpected exception is logged and its details hidden from the client."""
        if not self._open(close=True):
            return
        if not isinstance(error, DraftproofError):
            _LOG.error("request %s failed", self._request_id, exc_info=error)
            error = internal_error(self._request_id)
        self._outlet.fail(error)

    def _end(self, work: Future[None]) -> None:
        try:
            error = work.exception()
        except CancelledError:
            error = RequestCancelledError(
                f"the request was cancelled: {self._request_id}, whose client left, or the server stops",
                "send it again if the answer is still wanted",
            )
        if not self._is_closed:
            self.fail(error or RuntimeError("the answer ended without a last response"))

    def _open(self, *, close: bool) -> bool:
        with self._lock:
            was_open = not self._is_closed
            self._is_closed |= close
        return was_open


def unique_number() -> str:
    """Return 16 unguessable hex digits that identify a request in the log and to its client."""
    return secrets.token_hex(8)


def internal_error(request_id: str) -> InternalError:
    """Return the error for a client whose request hit a bug in Draftproof."""
    return InternalError(
        f"the server failed on this request, by a bug in Draftproof: request {request_id}",
        "the server's log has the traceback under this request id",
    )
