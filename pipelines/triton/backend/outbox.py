"""Runs the thread that sends responses to Triton and polls open requests for cancellation.

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
                try:
                    job()
                except Exception:  # one failed job must not stop the others
                    _LOG.exception("a response could not be delivered")
            if time.monotonic() >= next_poll:
                self._watched = [poll for poll in self._watched if self._try(poll)]
                next_poll = time.monotonic() + POLL_INTERVAL_S

    def _try(self, poll: Callable[[], bool]) -> bool:
        try:
            return poll()
        except Exception:
            _LOG.exception("a request could not be polled")
            return False
