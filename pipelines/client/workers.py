"""Send concurrent requests by workers with one client each."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pipelines.client.client import Client
from pipelines.client.generation import Generation
from pipelines.errors import DraftproofError
from pipelines.wire.request import CompletionRequest

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

    def run(
        self,
        jobs: Sequence[Job],
        num_at_once: int,
        on_answer: Callable[[Generation | DraftproofError], None] = lambda answer: None,
        arrivals_s: Sequence[float] | None = None,
    ) -> list[Generation | DraftproofError]:
        """Run all jobs with up to ``num_at_once`` concurrent requests.

        Args:
            jobs: Jobs, which workers take in order.
            num_at_once: Number of concurrent requests, at most the number of workers.
            on_answer: Called in a worker's thread after each answer, for progress.
            arrivals_s: Arrival times of the jobs in seconds from now, not decreasing; a job does not start
                earlier. If all workers are busy, it waits, and its times include the wait. None if all jobs
                arrive now.

        Returns:
            Answers, or errors, in the order of ``jobs``.
        """
        if not 1 <= num_at_once <= len(self._asks):
            raise ValueError(f"num_at_once={num_at_once}, but there are {len(self._asks)} workers")
        answers: list[Generation | DraftproofError | None] = [None] * len(jobs)
        ticket = itertools.count()  # next() on it is atomic
        defects: list[BaseException] = []
        begun_s = time.monotonic()

        def work(ask: Ask) -> None:
            try:
                while not defects and (index := next(ticket)) < len(jobs):
                    waited_s = 0.0
                    if arrivals_s is not None:
                        arrival_s = begun_s + arrivals_s[index]
                        time.sleep(max(0.0, arrival_s - time.monotonic()))
                        waited_s = time.monotonic() - arrival_s
                    answer = _answer(ask, jobs[index], waited_s)
                    answers[index] = answer
                    on_answer(answer)
            except BaseException as defect:
                defects.append(defect)

        threads = [
            threading.Thread(target=work, args=(ask,), daemon=True) for ask in self._asks[:num_at_once]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if defects:
            raise defects[0]
        return [answer for answer in answers if answer is not None]

    def close(self) -> None:
        """Close all clients."""
        self._close()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _answer(ask: Ask, job: Job, waited_s: float) -> Generation | DraftproofError:
    """Send a request and add the time that it waited to the times of the answer."""
    try:
        answer = ask(job.request, job.model)
    except DraftproofError as error:
        return error
    ttft_s = None if answer.ttft_s is None else answer.ttft_s + waited_s
    return replace(answer, ttft_s=ttft_s, e2e_latency_s=answer.e2e_latency_s + waited_s)


def _ask_of(client: Client, *, streaming: bool) -> Ask:
    if not streaming:
        return client.generate
    return lambda request, model: client.stream(request, model).result()
