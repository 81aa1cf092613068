"""Many requests at once: a closed loop of workers, each with a client of its own."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    ) -> list[Generation | DraftproofError]:
        """Answer all jobs, up to ``num_at_once`` of them at any moment.

        Args:
            jobs: Taken in order; a worker takes the next when it is done with one.
            num_at_once: At most the number of workers.
            on_answer: Called in a worker's thread after each answer, for progress.

        Returns:
            Answers in the order of ``jobs``; an error in the place of an answer that failed.
        """
        if not 1 <= num_at_once <= len(self._asks):
            raise ValueError(f"num_at_once={num_at_once}, but there are {len(self._asks)} workers")
        answers: list[Generation | DraftproofError | None] = [None] * len(jobs)
        ticket = itertools.count()  # next() on it is atomic
        defects: list[BaseException] = []

        def work(ask: Ask) -> None:
            try:
                while not defects and (index := next(ticket)) < len(jobs):
                    try:
                        answer: Generation | DraftproofError = ask(jobs[index].request, jobs[index].model)
                    except DraftproofError as error:
                        answer = error
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


def _ask_through(client: Client, *, streaming: bool) -> Ask:
    if not streaming:
        return client.generate
    return lambda request, model: client.stream(request, model).result()
