"""Clients that compare every answer with the right one, and a tally of the results."""

from __future__ import annotations

import collections
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from pipelines.client import Client, CompletionRequest
from pipelines.client.generation import Generation
from pipelines.errors import DraftproofError, InternalError, RequestTimeoutError, ServerUnavailableError

EQUAL, WRONG, HUNG, LOST, CUT = "equal", "wrong", "hung", "lost", "cut"
"""The target's answer; another answer; none in time; an end without an error; left by the client itself."""

CONNECTION = "connection"
"""The connection broke or was refused: not an error from the server, but one that a client sees."""

_RETRY_S = 0.1
_LEARNED_AT_A_TIME = 8


@dataclass(frozen=True)
class Question:
    """A request, greedy or with a seed, and the parts of its answer that the target alone determines."""

    request: CompletionRequest
    answer: tuple[object, ...]


class Asked(Protocol):
    """A server with questions for it."""

    @property
    def questions(self) -> Sequence[Question]:
        """Return the questions that clients ask."""

    def client(self, number: int = 0) -> Client:
        """Connect a client."""


@dataclass(frozen=True)
class Heard:
    """The result of one request.

    Attributes:
        sent_s: On ``time.monotonic``'s clock.
        outcome: One of the words above, or the class of a typed error.
        arm: The arm that answered; "" if that is not known.
    """

    sent_s: float
    ended_s: float
    outcome: str
    arm: str = ""
    fallback_from: tuple[str, ...] = ()


@dataclass
class Tally:
    """The results of all clients of a drill; grows while they ask."""

    heard: list[Heard] = field(default_factory=list)

    def note(self, sent_s: float, outcome: str, answer: Generation | None = None) -> None:
        """Add the result of a request that ends now."""
        arms = () if answer is None else (answer.arm, answer.fallback_from)
        self.heard.append(Heard(sent_s, time.monotonic(), outcome, *arms))

    def count(self, outcome: str, sent_after_s: float = -math.inf) -> int:
        """Count requests with an outcome."""
        return sum(each.outcome == outcome and each.sent_s > sent_after_s for each in self.heard)

    @property
    def failed(self) -> list[Heard]:
        """Return the requests that ended in an error, typed or not."""
        return [each for each in self.heard if each.outcome not in (EQUAL, WRONG, HUNG, LOST, CUT)]

    @property
    def errors(self) -> dict[str, int]:
        """Count the errors by class."""
        return dict(sorted(collections.Counter(each.outcome for each in self.failed).items()))

    def num_open(self, at_s: float) -> int:
        """Count the requests that were open at a moment."""
        return sum(each.sent_s < at_s < each.ended_s for each in self.heard)


def said(answer: Generation) -> tuple[object, ...]:
    """Return the parts of an answer that the target alone determines."""
    return answer.text, answer.output_ids, answer.finish_reason, answer.log_probs, answer.top_log_probs


def learn(client: Client, requests: Sequence[CompletionRequest]) -> tuple[Question, ...]:
    """Ask the target alone for the right answers."""
    with ThreadPoolExecutor(_LEARNED_AT_A_TIME) as pool:
        answers = pool.map(lambda each: said(client.generate(each, "generate_target")), requests)
        return tuple(map(Question, requests, answers))


def outcome_of(answer: Callable[[], Generation], question: Question) -> str:
    """Wait for an answer and classify it."""
    try:
        return EQUAL if said(answer()) == question.answer else WRONG
    except DraftproofError as error:
        return class_of(error)


def class_of(error: DraftproofError) -> str:
    """Classify an error as the client sees it."""
    if isinstance(error, RequestTimeoutError):
        return HUNG
    if isinstance(error, InternalError) and error.message.startswith("the server's answer is inconsistent"):
        return LOST
    if isinstance(error, ServerUnavailableError) and error.message.startswith("no server answers"):
        return LOST if "ended before the last response" in error.message else CONNECTION
    return error.code


def ask(client: Client, question: Question, model: str, tally: Tally | None = None) -> str:
    """Stream one answer, and note its result in a tally."""
    sent_s = time.monotonic()
    heard: list[Generation] = []

    def answer() -> Generation:
        heard.append(client.stream(question.request, model).result())
        return heard[0]

    outcome = outcome_of(answer, question)
    if tally is not None:
        tally.note(sent_s, outcome, heard[0] if heard else None)
    return outcome


@contextmanager
def asking(
    place: Asked, models: Sequence[str], num_clients: int = 8, tally: Tally | None = None
) -> Iterator[Tally]:
    """Ask in the background; clients repeat what failed. The tally is complete when the block ends.

    Args:
        models: The models that the clients ask in turn.
        num_clients: Number of clients; each begins at another question.
    """
    tally, stop = tally or Tally(), threading.Event()

    def work(number: int) -> None:
        index = number * len(place.questions) // num_clients
        model = models[number // 2 % len(models)]
        with place.client(number) as client:
            while not stop.is_set():
                if ask(client, place.questions[index % len(place.questions)], model, tally) == EQUAL:
                    index += 1
                else:
                    time.sleep(_RETRY_S)

    threads = [threading.Thread(target=work, args=[number]) for number in range(num_clients)]
    for thread in threads:
        thread.start()
    try:
        yield tally
    finally:
        stop.set()
        for thread in threads:
            thread.join()
