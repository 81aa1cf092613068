"""Sends the responses of requests to Triton, and notices clients that have left, on one thread.

Sending a response takes 0.2 to 1.5 ms, mostly waiting for Triton, and polling a request takes 0.15 ms: too
long for the thread that steps the engines. One thread does both, because Triton frees a request with its last
response, and a freed request must not be polled.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from pipelines.errors import DraftproofError
from pipelines.triton.backend.outputs import Tensors
from pipelines.wire.chunk import Chunk
from pipelines.wire.responder import internal_error

_LOG = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.25  # time within which a disconnected client is noticed


class Outbox:
    """Runs jobs in order and polls open requests in between."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._watched: list[Callable[[], bool]] = []  # used by the thread only
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], object]) -> None:
        """Queue a job."""
        self._jobs.put(job)

    def watch(self, poll: Callable[[], bool]) -> None:
        """Poll a request for cancellation until ``poll`` returns False."""
        self._jobs.put(lambda: self._watched.append(poll))

    def close(self, timeout_s: float) -> None:
        """Run the queued jobs and end the thread."""
        self._jobs.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        next_poll = time.monotonic() + POLL_INTERVAL_S
        while True:
            try:
                wait_s = max(0.0, next_poll - time.monotonic()) if self._watched else None
                job = self._jobs.get(timeout=wait_s)
            except queue.Empty:
                pass
            else:
                if job is None:
                    return
                _try(job)
            if time.monotonic() >= next_poll:
                self._watched = [poll for poll in self._watched if _try(poll)]
                next_poll = time.monotonic() + POLL_INTERVAL_S


def _try(job: Callable[[], object]) -> object:
    try:
        return job()
    except Exception:  # one failed job must not stop the others
        _LOG.exception("a response could not be delivered, or a request not polled")
        return None


class TritonOutlet:
    """An ``Outlet`` to Triton, which the thread of the outbox serves.

    Args:
        backend: The module ``triton_python_backend_utils``.
        request: Triton's request.
        outbox: The thread that sends them.
        request_id: Id of the request for errors and the log.
        tensors_of: Returns the tensors of a chunk; called on the thread of the outbox.
    """

    def __init__(
        self,
        backend: Any,
        request: Any,
        outbox: Outbox,
        request_id: str,
        tensors_of: Callable[[Chunk], Tensors] | None = None,
    ) -> None:
        self._pb = backend
        self._outbox = outbox
        self._request_id = request_id
        self._tensors_of = tensors_of
        # Triton would drop unwanted outputs itself, but frees them without the GIL and crashes.
        self._wanted = frozenset(request.requested_output_names())
        # These are used by the thread of the outbox only. Without a sender, the last response was sent.
        self._sender: Any = request.get_response_sender()
        self._on_gone: Callable[[], object] | None = None
        self._is_gone = False

    def send(self, answer: Any, *, is_final: bool) -> None:
        """Queue one response."""
        self._outbox.put(lambda: self._deliver(answer, is_final))

    def fail(self, error: DraftproofError) -> None:
        """Queue an error as the last response."""
        self._outbox.put(lambda: self._deliver_error(error))

    def watch(self, on_gone: Callable[[], object]) -> None:
        """Poll Triton for a disconnect of the client."""
        self._outbox.put(lambda: self._begin_to_watch(on_gone))

    def _begin_to_watch(self, on_gone: Callable[[], object]) -> None:
        if self._is_gone:
            on_gone()
        elif self._sender is not None:
            self._on_gone = on_gone
            self._outbox.watch(self._poll)

    def _poll(self) -> bool:
        """Check whether the client has disconnected; False if it need not be asked again."""
        if self._sender is None:
            return False
        if not self._sender.is_cancelled():
            return True
        self._leave()
        return False

    def _leave(self) -> None:
        self._is_gone = True
        if self._on_gone is not None:
            self._on_gone()

    def _deliver(self, answer: Any, is_final: bool) -> None:
        if self._sender is None:
            return
        try:
            outputs = self._tensors_of(answer) if self._tensors_of and isinstance(answer, Chunk) else answer
            tensors = [
                self._pb.Tensor(name, array) for name, array in outputs.items() if name in self._wanted
            ]
            flags = self._pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_final else 0
            self._sender.send(self._pb.InferenceResponse(tensors), flags=flags)
        except Exception:
            _LOG.exception("request %s could not be answered", self._request_id)
            self._leave()
            self._deliver_error(internal_error(self._request_id))
        else:
            if is_final:
                self._let_go()

    def _deliver_error(self, error: DraftproofError) -> None:
        if self._sender is not None:
            sender = self._let_go()
            response = self._pb.InferenceResponse(error=self._pb.TritonError(error.to_wire()))
            sender.send(response, flags=self._pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _let_go(self) -> Any:
        """Release Triton's objects with the last response: freed at process exit, they would crash it."""
        sender, self._sender, self._on_gone = self._sender, None, None
        return sender
