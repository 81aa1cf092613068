"""Delivers the responses to one request to Triton, on the outbox thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pipelines.errors import DraftproofError
from pipelines.triton.backend.outbox import Outbox
from pipelines.triton.backend.tensors import Tensors
from pipelines.triton.backend.wire import SentTensors, TritonWire
from pipelines.wire.responder import internal_error

_LOG = logging.getLogger(__name__)


class TritonOutlet:
    """An ``Outlet`` to Triton.

    Args:
        wire: Creates Triton's responses.
        request: Triton's request.
        outbox: The thread that sends them.
        request_id: Id of the request for errors and the log.
        tensors_of: Returns the tensors of an answer; called on the thread of the outbox.
    """

    def __init__(
        self,
        wire: TritonWire,
        request: Any,
        outbox: Outbox,
        request_id: str,
        tensors_of: Callable[[Any], Tensors],
    ) -> None:
        self._wire = wire
        self._tensors_of = tensors_of
        # This and all below are used by the outbox thread only. None after the last response.
        self._sender: Any = request.get_response_sender()
        # Triton would drop unwanted outputs itself, but frees them without the GIL and crashes.
        self._wanted = frozenset(request.requested_output_names())
        self._sent: SentTensors = {}
        self._outbox = outbox
        self._request_id = request_id
        self._is_gone = False
        self._on_gone: Callable[[], object] = _nothing

    def send(self, answer: Any, *, is_final: bool) -> None:
        """Queue one response."""
        self._outbox.put(lambda: self._deliver(answer, is_final))

    def fail(self, error: DraftproofError) -> None:
        """Queue an error as the last response."""
        self._outbox.put(lambda: self._deliver_error(error))

    def watch(self, on_gone: Callable[[], object]) -> None:
        """Poll Triton for a disconnect of the client."""
        self._outbox.put(lambda: self._begin_to_watch(on_gone))

    def _poll(self) -> bool:
        """Check whether the client has disconnected; False if it need not be asked again."""
        if self._sender is None:
            return False
        if not self._sender.is_cancelled():
            return True
        self._on_gone()
        return False

    def _begin_to_watch(self, on_gone: Callable[[], object]) -> None:
        if self._is_gone:
            on_gone()
        elif self._sender is not None:
            self._on_gone = on_gone
            self._outbox.watch(self._poll)

    def _deliver(self, answer: Any, is_final: bool) -> None:
        if self._sender is None:
            return
        try:
            outputs = self._tensors_of(answer)
            wanted = {name: array for name, array in outputs.items() if name in self._wanted}
            response = self._wire.response(wanted, self._sent)
            self._sender.send(response, flags=self._wire.final_flag if is_final else 0)
        except Exception:
            _LOG.exception("request %s could not be answered", self._request_id)
            self._is_gone = True
            self._on_gone()
            self._deliver_error(internal_error(self._request_id))
        else:
            if is_final:
                self._let_go()

    def _deliver_error(self, error: DraftproofError) -> None:
        if self._sender is not None:
            sender = self._let_go()
            sender.send(self._wire.error_response(error), flags=self._wire.final_flag)

    def _let_go(self) -> Any:
        """Release Triton's objects with the last response: freed at process exit, they would crash it."""
        sender, self._sender = self._sender, None
        self._sent.clear()
        self._on_gone = _nothing
        return sender


def _nothing() -> None:
    pass
