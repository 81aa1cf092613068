"""Many requests at once, by workers that each have a client of their own."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pipelines.client.client import Client
from pipelines.client.generation import Generation
from pipelines.client.request import CompletionRequest
from pipelines.errors import DraftproofError

Ask = Callable[[CompletionRequest, str], Generation]
"""One request to one model and its answer; raises DraftproofError."""


@dataclass(frozen=True)
class Job:
    """One request and the model it goes to."""

    request: CompletionRequest
    model: str


class Workers:
    """A fixed number of clients of one server; each answers one request at a time.

    Args:
        asks: One callable per worker, such as ``Client.generate``.
        close: Called by ``close``.
    """

    def __init__(self, asks: Sequence[Ask], close: Callable[[], None] = lambda: None) -> None:
        self._asks = tuple(asks)
        self._close = close

    @classmethod
    def connect(cls, url: str, num_workers: int, *, streaming: bool) -> Workers:
        """Make ``num_workers`` clients of the server at ``url``.

        Raises:
            InvalidRequestError: The address cannot be used.
        """
        clients = [Client.connect(url) for _ in range(num_workers)]

        def close_all() -> None:
            for client in clients:
                client.close()

        return cls([_ask_through(client, streaming=streaming) for client in clients], close_all)

    def run(
        self,
        jobs: Sequence[Job],
        num_at_once: int,
        on_answer: Callable[[Generation | DraftproofError], None] = lambda answer: None,
        arrivals_s: Sequence[float] | None = None,
    ) -> list[Generation | DraftproofError]:
        """Answer all jobs, up to ``num_at_once`` of them at any moment.

        Args:
            jobs: Taken in order; a worker takes the next when it is done with one.
            num_at_once: At most the number of workers.
            on_answer: Called in a worker's thread after each answer, for progress.
            arrivals_s: When each job arrives, in seconds from now, never decreasing: it begins no earlier.
                If all workers are busy then, it waits, and its times contain the wait. None: all are
                here.

        Returns:
            Answers in the order of ``jobs``; an error in the place of an answer that failed.
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
    """What comes back, its times counted from ``waited_s`` before now."""
    try:
        answer = ask(job.request, job.model)
    except DraftproofError as error:
        return error
    ttft_s = None if answer.ttft_s is None else answer.ttft_s + waited_s
    return replace(answer, ttft_s=ttft_s, e2e_latency_s=answer.e2e_latency_s + waited_s)


def _ask_through(client: Client, *, streaming: bool) -> Ask:
    if not streaming:
        return client.generate
    return lambda request, model: client.stream(request, model).result()
