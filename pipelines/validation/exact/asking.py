"""Send the requests of a pass with its load, arrivals, streaming, cache and cancellations."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pipelines.client import Chunk, CompletionRequest, Generation
from pipelines.client.workers import Ask, Job, Workers
from pipelines.errors import DraftproofError
from pipelines.validation.exact.plan import Pass, ProofPlan, questions_of

PRIMING_TOKENS = 8
"""Length of an answer for which draft and target have read the whole prompt."""

_MOST_CHUNKS = 4  # of a request before it is cancelled
_MIN_TOKENS_TO_CANCEL = 64  # several chunks at any draft length
_HEAD_START_S = 0.005  # of the compared requests, which begin with the first chunk of the first of these
_PAUSE_S = 0.05  # after the server refused a request
_FIRST_CHUNK_TIMEOUT_S = 5.0


class Stream(Protocol):
    """A streamed answer: ``pipelines.client.GenerationStream`` or a stand-in."""

    def __iter__(self) -> Iterator[Chunk]:
        """Yield chunks as they arrive."""

    def result(self) -> Generation:
        """Wait for the end and return the whole answer."""

    def close(self) -> None:
        """Cancel the rest."""


class ClientCalls(Protocol):
    """The part of ``pipelines.client.Client`` that proofs need."""

    def generate(self, request: CompletionRequest, model: str) -> Generation:
        """Request a whole answer; raises DraftproofError."""

    def stream(self, request: CompletionRequest, model: str) -> Stream:
        """Request a streamed answer; raises DraftproofError."""


@dataclass(frozen=True)
class PassAnswers:
    """Answers of a pass.

    Attributes:
        answers: Answers, or errors, in the order of the questions.
        num_cut_off: Number of other requests that were cancelled meanwhile.
        seconds: Wall time.
    """

    answers: tuple[Generation | DraftproofError, ...]
    num_cut_off: int
    seconds: float


def ask_pass(
    plan: ProofPlan,
    asked: Pass,
    nonce: str,
    clients: Sequence[ClientCalls],
    on_answer: Callable[[object], None] = lambda answer: None,
) -> PassAnswers:
    """Send all requests of a pass.

    Args:
        plan: ProofPlan of the proof.
        asked: Pass.
        nonce: Text that is unique to this run.
        clients: Clients, one more than concurrent requests; the last one sends requests to cancel.
        on_answer: Called after each answer, in any thread.
    """
    jobs = [
        Job(replace(question.request, num_draft_tokens=asked.draft_length.num_draft_tokens), asked.model)
        for question in questions_of(plan, asked, nonce)
    ]
    # Each worker has its own seed, so that arrivals do not coincide.
    asks = [
        _ask_through(client, asked, plan.mean_gap_s, random.Random(f"{asked.number} {place}"))
        for place, client in enumerate(clients[: asked.num_at_once])
    ]
    started_s = time.monotonic()
    with Cancellations(clients[-1], plan, asked, nonce) as cancellations:
        answers = Workers(asks).run(jobs, asked.num_at_once, on_answer)
    return PassAnswers(tuple(answers), cancellations.num_cut_off, time.monotonic() - started_s)


def _ask_through(client: ClientCalls, asked: Pass, mean_gap_s: float, rng: random.Random) -> Ask:
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
    """Build a short request that puts the prompt into the prefix cache."""
    plain = CompletionRequest(max_tokens=min(PRIMING_TOKENS, request.max_tokens))
    kept = ("prompt", "prompt_ids", "add_special_tokens", "parse_special_tokens", "num_draft_tokens")
    return replace(plain, **{name: getattr(request, name) for name in kept})


class Cancellations:
    """Starts other requests one after another and cancels each after a few chunks.

    Args:
        client: Client that no other thread uses.
        plan: ProofPlan whose prompts are used, each with a new first line.
        asked: Pass; nothing is sent if it has no cancellations.
        nonce: Text that is unique to this run.
    """

    def __init__(self, client: ClientCalls, plan: ProofPlan, asked: Pass, nonce: str) -> None:
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
            # A short pass could otherwise end before the first of them runs.
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
                self._start_and_cancel(number)
            except DraftproofError:  # the server is full; the compared requests matter more
                self._has_begun.set()
                self._is_over.wait(_PAUSE_S)

    def _start_and_cancel(self, number: int) -> None:
        prompt = self._rng.choice(self._plan.prompts)
        request = CompletionRequest(
            f"# {self._nonce} cut {self._asked.number}-{number}\n{prompt.text}",
            max_tokens=max(self._plan.max_tokens, _MIN_TOKENS_TO_CANCEL),
            temperature=self._rng.choice((0.0, 0.8)),
            num_draft_tokens=self._asked.draft_length.num_draft_tokens,
            **prompt.switches,
        )
        # A fast answer is over after two chunks: until one was cancelled, none is read further.
        num_chunks = self._rng.randint(1, _MOST_CHUNKS) if self.num_cut_off else 1
        stream = self._client.stream(request, self._asked.model)
        try:
            for place, chunk in enumerate(stream, start=1):
                self._has_begun.set()
                if chunk.finish_reason:
                    return
                if place == num_chunks or self._is_over.is_set():
                    if not self.num_cut_off:
                        self._is_over.wait(_HEAD_START_S)
                    self.num_cut_off += 1
                    return
        finally:
            stream.close()
