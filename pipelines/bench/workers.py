"""Send concurrent requests by workers with one client each."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pipelines.client import Client, CompletionRequest, Generation
from pipelines.errors import DraftproofError

Ask = Callable[[CompletionRequest, str], Generation]
"""Sends one request to one model and returns its answer; raises DraftproofError."""


@dataclass(frozen=True)
class Job:
    """A request and its model."""

    request: CompletionRequest
    model: str


class Workers:
    """A fixed number of clients of one server, each with one request at a time.

    Args:
        asks: Function of each worker, such as ``Client.generate``.
        close: Function that ``close`` calls.
    """

    def __init__(self, asks: Sequence[Ask], close: Callable[[], None] = lambda: None) -> None:
        self._asks = tuple(asks)
        self._close = close

    @classmethod
    def connect(cls, url: str, num_workers: int, *, streaming: bool) -> Workers:
        """Create ``num_workers`` clients of the server at ``url``.

        Raises:
            InvalidRequestError: The address is invalid.
        """
        clients = [Client.connect(url) for _ in range(num_workers)]

        def close_all() -> None:
            for client in clients:
                client.close()

        return cls([_ask_of(client, streaming=streaming) for client in clients], close_all)

    def run(self, jobs: Sequence[Job], num_at_once: int) -> list[Generation | DraftproofError]:
        """Run all jobs with up to ``num_at_once`` concurrent requests, at most one for each worker.

        Returns:
            Answers, or errors, in the order of ``jobs``.
        """
        if not 1 <= num_at_once <= len(self._asks):
            raise ValueError(f"num_at_once={num_at_once}, but there are {len(self._asks)} workers")
        idle: queue.SimpleQueue[Ask] = queue.SimpleQueue()
        for ask in self._asks[:num_at_once]:
            idle.put(ask)

        def work(job: Job) -> Generation | DraftproofError:
            ask = idle.get()
            try:
                return ask(job.request, job.model)
            except DraftproofError as error:
                return error
            finally:
                idle.put(ask)

        pool = ThreadPoolExecutor(num_at_once)
        try:
            return list(pool.map(work, jobs))
        finally:  # an interrupt waits for no answer
            pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Close all clients."""
        self._close()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ask_of(client: Client, *, streaming: bool) -> Ask:
    if not streaming:
        return client.generate
    return lambda request, model: client.stream(request, model).result()
