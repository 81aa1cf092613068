"""The thread that talks to Triton about open requests.

Sending a response takes 0.2 to 1.5 ms, mostly waiting for Triton to take it over, and asking whether a
request was cancelled takes 0.15 ms: too long for the thread that steps the engines. Both are done here,
one after the other, because a request must not be asked about once its last response was sent: Triton
frees it then.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import Protocol

_LOG = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.25  # how soon the end of a client is noticed


class Deliverable(Protocol):
    """One thing to do on the outbox thread."""

    def __call__(self) -> None:
        """Do it."""


class Watched(Protocol):
    """A request that may be cancelled."""

    def poll(self) -> bool:
        """Look whether it was cancelled; False when it need not be watched any longer."""


class Outbox:
    """Runs jobs in the order they came and polls the open requests in between."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Deliverable | None] = queue.SimpleQueue()
        self._watched: list[Watched] = []  # touched by the thread only
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def put(self, job: Deliverable) -> None:
        """Do a job after those put before it."""
        self._jobs.put(job)

    def watch(self, request: Watched) -> None:
        """Poll a request until it says that there is no need."""
        self._jobs.put(lambda: self._watched.append(request))

    def close(self, timeout_s: float) -> None:
        """Do what is left, then end the thread."""
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
                except Exception:  # a job that fails must not take the others with it
                    _LOG.exception("a response could not be delivered")
            if time.monotonic() >= next_poll:
                self._watched = [request for request in self._watched if self._poll(request)]
                next_poll = time.monotonic() + POLL_INTERVAL_S

    def _poll(self, request: Watched) -> bool:
        try:
            return request.poll()
        except Exception:
            _LOG.exception("a request could not be polled")
            return False
