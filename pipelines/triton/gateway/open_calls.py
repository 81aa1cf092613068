"""Tracks open requests by model: limits their number and ends those of a model that died."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pipelines.errors import DraftproofError, ServerBusyError

_Result = TypeVar("_Result")

MAX_OPEN_CALLS = 1024
"""Maximum of open requests, several times the largest batch and queue; further ones are refused."""

OnGone = Callable[[DraftproofError], None]
"""Sends a client the error that ends its answer."""


class OpenCalls:
    """Tracks the open requests of a server. Used on one event loop.

    Attributes:
        num_refused: Requests refused because too many were open.
    """

    def __init__(self, max_open: int = MAX_OPEN_CALLS) -> None:
        self.num_refused = 0
        self._max_open = max_open
        self._open: dict[str, dict[object, OnGone]] = {}
        self._num_open = 0
        self._heard_at_s: dict[str, float] = {}

    @property
    def num_open(self) -> int:
        """Number of open requests."""
        return self._num_open

    def begin(self, model: str, on_gone: OnGone) -> Callable[[], None]:
        """Register a request to a model.

        Args:
            model: Name of the model.
            on_gone: Called if the model's process ends or hangs; the request is then no longer open.

        Returns:
            A function that ends the request; may be called twice.

        Raises:
            ServerBusyError: Too many requests are open.
        """
        if self._num_open >= self._max_open:
            self.num_refused += 1
            raise ServerBusyError(
                "too many requests are open",
                values=f"{self._num_open} requests",
                limit=f"{self._max_open} for all models of a server",
                remedy="send the request again later",
            )
        number = object()
        self._open.setdefault(model, {})[number] = on_gone
        self._num_open += 1

        def end() -> None:
            if self._open.get(model, {}).pop(number, None) is not None:
                self._num_open -= 1

        return end

    async def run(self, model: str, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a request to a model; it is cancelled if the model's process ends or hangs.

        Raises:
            DraftproofError: Too many requests are open, or the model's process ended or hung.
        """
        gone: list[DraftproofError] = []
        task: asyncio.Task[_Result] | None = None

        def on_gone(error: DraftproofError) -> None:
            gone.append(error)
            assert task is not None
            task.cancel()

        try:
            end = self.begin(model, on_gone)
        except ServerBusyError:
            work.close()
            raise
        task = asyncio.create_task(work)
        try:
            return await task
        except asyncio.CancelledError:
            if gone:
                raise gone[0] from None
            raise  # the client has disconnected
        finally:
            end()

    def end(self, model: str, error: DraftproofError) -> int:
        """End all requests to a model with an error.

        Returns:
            The number of requests.
        """
        ended = self._open.pop(model, {})
        self._num_open -= len(ended)
        for on_gone in ended.values():
            on_gone(error)
        return len(ended)

    def end_all(self, error: DraftproofError) -> int:
        """End all requests with an error; see ``end``."""
        return sum(self.end(model, error) for model in tuple(self._open))

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
