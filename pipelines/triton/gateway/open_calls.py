"""Tracks open requests by model: limits their number and ends those of a model that died."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from pipelines.errors import DraftproofError, ServerBusyError

MAX_OPEN_CALLS = 1024
"""Maximum of open requests, several times the largest batch and queue; further ones are refused."""


class OpenCalls:
    """Tracks the open requests of a server. Used on one event loop.

    Attributes:
        num_refused: Requests refused because too many were open.
    """

    def __init__(self, max_open: int = MAX_OPEN_CALLS) -> None:
        self.num_refused = 0
        self._max_open = max_open
        self._open: dict[asyncio.Task[None], str] = {}
        self._errors: dict[asyncio.Task[None], DraftproofError] = {}
        self._heard_at_s: dict[str, float] = {}

    @property
    def num_open(self) -> int:
        """Number of open requests."""
        return len(self._open)

    async def run(self, model: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a request to a model; it is cancelled if the model's process ends or hangs.

        Raises:
            DraftproofError: Too many requests are open, or the model's process ended or hung.
        """
        if self.num_open >= self._max_open:
            work.close()
            self.num_refused += 1
            raise ServerBusyError(
                f"too many requests are open: {self.num_open} for all models of the server",
                "send the request again later",
            )
        task = asyncio.create_task(work)
        self._open[task] = model
        try:
            await task
        except asyncio.CancelledError:
            if error := self._errors.get(task):
                raise error from None
            raise  # the client has disconnected
        finally:
            self._open.pop(task, None)
            self._errors.pop(task, None)

    def end(self, model: str, error: DraftproofError) -> int:
        """End all requests to a model with an error.

        Returns:
            The number of requests.
        """
        ended = [task for task, asked in self._open.items() if asked == model]
        for task in ended:
            del self._open[task]
            self._errors[task] = error
            task.cancel()
        return len(ended)

    def end_all(self, error: DraftproofError) -> None:
        """End all requests with an error; see ``end``."""
        for model in set(self._open.values()):
            self.end(model, error)

    def hear(self, model: str) -> None:
        """Record that a model sent a response."""
        self._heard_at_s[model] = time.monotonic()

    @property
    def latest_heard_at_s(self) -> float:
        """Time of the latest response of any model, monotonic; 0 for never."""
        return max(self._heard_at_s.values(), default=0.0)

    def heard_at_s(self, model: str) -> float:
        """Return the time of a model's latest response on the clock of ``time.monotonic``; 0 for never."""
        return self._heard_at_s.get(model, 0.0)
