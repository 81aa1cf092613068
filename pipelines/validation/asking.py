"""Asks the requests of a pass in the way of the pass: load, arrivals, streaming, cache, cancellations."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pipelines.client import Chunk, CompletionRequest, Generation
from pipelines.client.at_once import Ask, Job, Workers
from pipelines.errors import DraftproofError
from pipelines.validation.plan import Pass, Plan, questions_of

PRIMING_TOKENS = 8
"""Enough of an answer for draft and target to have read the whole prompt."""

_MOST_CHUNKS = 4  # of a request that is cut off
_LONG_ENOUGH_TO_CUT = 64  # tokens: several chunks at any draft length
_PAUSE_S = 0.05  # before the next one where the server had no place
_FIRST_CHUNK_TIMEOUT_S = 5.0


class Stream(Protocol):
    """An answer in chunks: ``pipelines.client.GenerationStream`` or a stand-in."""

    def __iter__(self) -> Iterator[Chunk]:
        """Chunks as they arrive."""

    def result(self) -> Generation:
        """The whole answer."""

    def close(self) -> None:
        """Cancel the rest."""


class Asked(Protocol):
    """The part of ``pipelines.client.Client`` that proofs need."""

    def generate(self, request: CompletionRequest, model: str) -> Generation:
        """A whole answer; raises DraftproofError."""

    def stream(self, request: CompletionRequest, model: str) -> Stream:
        """An answer in chunks; raises DraftproofError."""


@dataclass(frozen=True)
class PassAnswers:
    """What a pass gave.

    Attributes:
        answers: In the order of the questions; an error in the place of an answer that failed.
        num_cut_off: Other requests that were cut off meanwhile.
        seconds: Wall time.
    """

    answers: tuple[Generation | DraftproofError, ...]
    num_cut_off: int
    seconds: float


def ask_pass(
    plan: Plan,
    asked: Pass,
    nonce: str,
    clients: Sequence[Asked],
    on_answer: Callable[[object], None] = lambda answer: None,
) -> PassAnswers:
    """Ask every question of a pass.

    Args:
        plan: Says how much is asked.
        asked: The pass.
        nonce: Text of this run.
        clients: One more than the pass has requests at once: the last one makes the cancellations.
        on_answer: Called after each answer, in any thread.
    """
    jobs = [
        Job(replace(question.request, num_draft_tokens=asked.draft_length.num_draft_tokens), asked.model)
        for question in questions_of(plan, asked, nonce)
    ]
    # Another seed per worker: arrivals must not coincide.
    asks = [
        _ask_through(client, asked, plan.mean_gap_s, random.Random(f"{asked.number} {place}"))
        for place, client in enumerate(clients[: asked.num_at_once])
    ]
    started_s = time.monotonic()
    with Cancellations(clients[-1], plan, asked, nonce) as cancellations:
        answers = Workers(asks).run(jobs, asked.num_at_once, on_answer)
    return PassAnswers(tuple(answers), cancellations.num_cut_off, time.monotonic() - started_s)


def _ask_through(client: Asked, asked: Pass, mean_gap_s: float, rng: random.Random) -> Ask:
    def ask(request: CompletionRequest, model: str) -> Generation:
        if asked.is_staggered:
            time.sleep(rng.expovariate(1.0) * mean_gap_s)
        if not asked.is_cold:
            client.generate(_priming(request), model)
        if asked.is_streaming:
            return client.stream(request, model).result()
        return client.generate(request, model)

    return ask


def _priming(request: CompletionRequest) -> CompletionRequest:
    """The same text, asked for less: it puts the prompt into the prefix cache."""
    return CompletionRequest(
        request.prompt,
        max_tokens=min(PRIMING_TOKENS, request.max_tokens),
        num_draft_tokens=request.num_draft_tokens,
    )


class Cancellations:
    """Begins other requests, one after another, and cuts each off after a few chunks.

    Args:
        client: Used by nobody else.
        plan: Whose prompts are used, under a first line of their own.
        asked: The pass; a pass without cancellations gets none.
        nonce: Text of this run.
    """

    def __init__(self, client: Asked, plan: Plan, asked: Pass, nonce: str) -> None:
        self.num_cut_off = 0
        self._client = client
        self._plan = plan
        self._asked = asked
        self._nonce = nonce
        self._rng = random.Random(f"cancellations {asked.number}")
        self._has_begun = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cancellations", daemon=True)

    def __enter__(self) -> Cancellations:
        if self._asked.with_cancellations:
            self._thread.start()
            # Else a short pass could be over before the first of them runs.
            self._has_begun.wait(_FIRST_CHUNK_TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._asked.with_cancellations:
            self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            number += 1
            try:
                self._begin_and_cut_off(number)
            except DraftproofError:  # no place for it: the compared requests matter more
                self._has_begun.set()
                self._is_over.wait(_PAUSE_S)

    def _begin_and_cut_off(self, number: int) -> None:
        prompt = self._rng.choice(self._plan.prompts)
        request = CompletionRequest(
            f"# {self._nonce} cut {self._asked.number}-{number}\n{prompt.text}",
            max_tokens=max(self._plan.max_tokens, _LONG_ENOUGH_TO_CUT),
            temperature=self._rng.choice((0.0, 0.8)),
            num_draft_tokens=self._asked.draft_length.num_draft_tokens,
        )
        num_chunks = self._rng.randint(1, _MOST_CHUNKS)
        stream = self._client.stream(request, self._asked.model)
        try:
            for place, chunk in enumerate(stream, start=1):
                self._has_begun.set()
                if chunk.finish_reason:
                    return
                if place == num_chunks or self._is_over.is_set():
                    self.num_cut_off += 1
                    return
        finally:
            stream.close()
