"""Answers to one request: in order, and exactly one of them the last, whatever happens.

Triton keeps a client waiting for ever if its model forgets the last response. So whoever takes a
request makes a ``Responder`` first, and every way out ends in ``send(is_final=True)``, ``fail`` or
``finish``; what is sent after that is dropped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any

import numpy.typing as npt

from pipelines.errors import DraftproofError, InternalError, RequestCancelledError
from pipelines.serving.outbox import Outbox
from pipelines.serving.triton_wire import SentTensors, TritonWire

_LOG = logging.getLogger(__name__)


class Responder:
    """Answers one request; its methods may be called from any thread.

    Args:
        wire: Makes responses.
        request: Triton's request.
        outbox: Delivers them.
        request_id: Names the request in errors.
    """

    def __init__(self, wire: TritonWire, request: Any, outbox: Outbox, request_id: str) -> None:
        self._wire = wire
        # Touched by the outbox thread only; None after the last response.
        self._sender: Any = request.get_response_sender()
        # Triton would drop the other outputs itself, but frees them without Python's lock and crashes.
        self._wanted = frozenset(request.requested_output_names())
        self._sent: SentTensors = {}
        self._outbox = outbox
        self._request_id = request_id
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_broken = False  # a response could not be sent
        self._on_cancelled: Callable[[], object] = _nothing

    def follow(self, work: Future[None]) -> None:
        """Cancel the work when the client has gone, and end the answer when the work has ended.

        Args:
            work: Sends the responses. However it ends, even cancelled before it began, the client gets
                a last response.
        """
        self._on_cancelled = work.cancel
        if self._is_broken:  # before this call: the work was already running
            work.cancel()
        work.add_done_callback(self._end)
        self._outbox.watch(self)

    def send(self, outputs: Mapping[str, npt.NDArray[Any]], *, is_final: bool) -> None:
        """Give one response."""
        if self._open(close=is_final):
            self._outbox.put(lambda: self._deliver(outputs, is_final))

    def fail(self, error: BaseException) -> None:
        """End with an error; one that is not ours is logged and hidden from the client."""
        if not self._open(close=True):
            return
        if not isinstance(error, DraftproofError):
            _LOG.error("request %s failed", self._request_id, exc_info=error)
            error = internal_error(self._request_id)
        ours = error
        self._outbox.put(lambda: self._deliver_error(ours))

    def finish(self) -> None:
        """End without a response."""
        if self._open(close=True):
            self._outbox.put(self._deliver_end)

    def poll(self) -> bool:
        """Look whether the client has gone (``outbox.Watched``)."""
        if self._sender is None:
            return False
        if not self._sender.is_cancelled():
            return True
        self._on_cancelled()
        return False

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

    def _deliver(self, outputs: Mapping[str, npt.NDArray[Any]], is_final: bool) -> None:
        if self._sender is None:
            return
        try:
            wanted = {name: array for name, array in outputs.items() if name in self._wanted}
            response = self._wire.response(wanted, self._sent)
            self._sender.send(response, flags=self._wire.final_flag if is_final else 0)
        except Exception:
            _LOG.exception("request %s could not be answered", self._request_id)
            self._open(close=True)
            self._is_broken = True
            self._on_cancelled()
            self._deliver_error(internal_error(self._request_id))
        else:
            if is_final:
                self._let_go()

    def _deliver_error(self, error: DraftproofError) -> None:
        if self._sender is not None:
            sender = self._let_go()
            sender.send(self._wire.error_response(error), flags=self._wire.final_flag)

    def _deliver_end(self) -> None:
        if self._sender is not None:
            self._let_go().send(flags=self._wire.final_flag)

    def _let_go(self) -> Any:
        """Drop Triton's objects with the last response: kept until the process ends, they would crash it."""
        sender, self._sender = self._sender, None
        self._sent.clear()
        self._on_cancelled = _nothing
        return sender


def _nothing() -> None:
    pass


def internal_error(request_id: str) -> InternalError:
    """What a client is told of a defect of ours."""
    return InternalError(
        "the server failed on this request",
        values=f"request {request_id}",
        limit="this is a defect",
        remedy="the server's log has the traceback under this request id",
    )
