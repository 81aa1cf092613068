"""Answers to one request: in order, and exactly one of them the last, whatever happens.

A client waits for ever if its last response is forgotten. So whoever takes a request makes a
``Responder`` first, and every way out ends in ``send(is_final=True)``, ``fail`` or ``finish``; what is
sent after that is dropped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol

import numpy.typing as npt

from pipelines.errors import DraftproofError, InternalError, RequestCancelledError

_LOG = logging.getLogger(__name__)


class Outlet(Protocol):
    """Takes the responses to one request to its client, in order; may be called from any thread."""

    def send(self, outputs: Mapping[str, npt.NDArray[Any]], *, is_final: bool) -> None:
        """Take one response; its arrays do not change any more."""

    def fail(self, error: DraftproofError) -> None:
        """Take an error as the last response."""

    def finish(self) -> None:
        """End without a response."""

    def watch(self, on_gone: Callable[[], object]) -> None:
        """Call this once the client has gone or cannot be reached, as long as no last response was taken."""


class Responder:
    """Answers one request; its methods may be called from any thread.

    Args:
        outlet: Leads to the client.
        request_id: Names the request in errors.
    """

    def __init__(self, outlet: Outlet, request_id: str) -> None:
        self._outlet = outlet
        self._request_id = request_id
        self._lock = threading.Lock()
        self._is_closed = False

    def follow(self, work: Future[None]) -> None:
        """Cancel the work when the client has gone, and end the answer when the work has ended.

        Args:
            work: Sends the responses. However it ends, even cancelled before it began, the client gets
                a last response.
        """
        self._outlet.watch(work.cancel)
        work.add_done_callback(self._end)

    def send(self, outputs: Mapping[str, npt.NDArray[Any]], *, is_final: bool) -> None:
        """Give one response."""
        if self._open(close=is_final):
            self._outlet.send(outputs, is_final=is_final)

    def fail(self, error: BaseException) -> None:
        """End with an error; one that is not ours is logged and hidden from the client."""
        if not self._open(close=True):
            return
        if not isinstance(error, DraftproofError):
            _LOG.error("request %s failed", self._request_id, exc_info=error)
            error = internal_error(self._request_id)
        self._outlet.fail(error)

    def finish(self) -> None:
        """End without a response."""
        if self._open(close=True):
            self._outlet.finish()

    def _end(self, work: Future[None]) -> None:
        try:
            error = work.exception()
        except CancelledError:
            error = RequestCancelledError(
                "the request was cancelled",
                values=f"request {self._request_id}",
                limit="the client went away, asked to stop, or the server is ending",
                remedy="send it again if the answer is still wanted",
            )
        if not self._is_closed:
            self.fail(error or RuntimeError("the answer ended without a last response"))

    def _open(self, *, close: bool) -> bool:
        with self._lock:
            was_open = not self._is_closed
            self._is_closed |= close
            return was_open


def internal_error(request_id: str) -> InternalError:
    """What a client is told of a defect of ours."""
    return InternalError(
        "the server failed on this request",
        values=f"request {request_id}",
        limit="this is a defect",
        remedy="the server's log has the traceback under this request id",
    )
