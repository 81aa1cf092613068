"""Send the requests of a pass with its load, arrivals, streaming, cache and cancellations."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from pipelines.client import Client, CompletionRequest, Generation
from pipelines.errors import DraftproofError
from pipelines.validation.asking import OnAnswer, ask_each
from pipelines.validation.exact.plan import Pass, ProofPlan, Question
from pipelines.validation.stopping import stoppable

TOKENS_TO_CANCEL = 64
"""Length of an answer that is cancelled: several chunks at any draft length."""

PRIMING_TOKENS = 4
"""Length of an answer for which draft and target have read the whole prompt."""

_MOST_CHUNKS = 4  # of a request before it is cancelled
_HEAD_START_S = 0.005  # of the compared requests, which begin with the first chunk of the first of these
_PAUSE_S = 0.05  # after the server refused a request
_FIRST_CHUNK_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class PassAnswers:
    """Answers of a pass.

    Attributes:
        answers: Answers, or errors, in the order of the questions.
        num_cut_off: Number of other requests that were cancelled meanwhile.
        seconds: Wall time.
    """

    answers: Sequence[Generation | DraftproofError]
    num_cut_off: int
    seconds: float


def ask_pass(
    plan: ProofPlan,
    asked: Pass,
    questions: Sequence[Question],
    nonce: str,
    client: Client,
    on_answer: OnAnswer = lambda name, num_done, num_all: None,
) -> PassAnswers:
    """Send all requests of a pass.

    Args:
        plan: Plan of the proof.
        asked: Pass.
        questions: What the pass asks.
        nonce: Text that is unique to this run.
        client: Client of the server.
        on_answer: Called after each answer.
    """
    rng = random.Random(f"arrivals {asked.number}")
    gaps_s = [rng.expovariate(1.0) * plan.mean_gap_s for _ in questions]
    requests = [
        replace(question.request, num_draft_tokens=asked.draft_length.at(place)[0])
        for place, question in enumerate(questions)
    ]
    primed: set[CompletionRequest] = set()
    priming_locks = {_priming(request): threading.Lock() for request in requests}

    def prime(request: CompletionRequest) -> None:
        with priming_locks[request]:  # who has the same prompt waits
            if request not in primed:
                client.generate(request, asked.model)
                primed.add(request)

    def ask(place: int) -> Generation:
        request = requests[place]
        if not asked.is_cold:
            prime(_priming(request))
        if asked.is_staggered:
            time.sleep(gaps_s[place])
        if asked.is_streaming:
            return client.stream(request, asked.model).result()
        return client.generate(request, asked.model)

    others = Cancellations(client, plan, asked, max(2, len(questions) // 2), nonce)
    started_s = time.monotonic()
    with others if asked.with_cancellations else nullcontext():
        answers = ask_each(f"running {asked}", ask, range(len(questions)), asked.num_at_once, on_answer)
    return PassAnswers(answers, others.num_cut_off, time.monotonic() - started_s)


def _priming(request: CompletionRequest) -> CompletionRequest:
    """Build a short request that puts the prompt into the prefix cache."""
    plain = CompletionRequest(max_tokens=min(PRIMING_TOKENS, request.max_tokens))
    kept = ("prompt", "prompt_ids", "add_special_tokens", "parse_special_tokens", "num_draft_tokens")
    return replace(plain, **{name: getattr(request, name) for name in kept})


class Cancellations(threading.Thread):
    """Starts other requests one after another and cancels each after a few chunks, until its block is left.

    Args:
        client: Client of the server.
        plan: Plan whose prompts are used, each with a new first line.
        asked: Pass.
        most: Most requests to start, so that they do not take most of the time.
        nonce: Text that is unique to this run.
    """

    def __init__(self, client: Client, plan: ProofPlan, asked: Pass, most: int, nonce: str) -> None:
        super().__init__(name="cancellations", daemon=True)
        self.num_cut_off = 0
        self._client, self._plan, self._asked, self._most, self._nonce = client, plan, asked, most, nonce
        self._rng = random.Random(f"cancellations {asked.number}")
        self._has_begun = threading.Event()
        self._is_over = threading.Event()

    def __enter__(self) -> None:
        self.start()
        # A short pass could otherwise end before the first of them runs.
        self._has_begun.wait(_FIRST_CHUNK_TIMEOUT_S)

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()

    def run(self) -> None:
        """Start and cancel requests."""
        number = 0
        while not self._is_over.is_set() and self.num_cut_off < self._most:
            number += 1
            try:
                stoppable(self._start_and_cancel)(number)
            except DraftproofError:  # the server is full; the compared requests matter more
                self._has_begun.set()
                self._is_over.wait(_PAUSE_S)

    def _start_and_cancel(self, number: int) -> None:
        prompt = self._rng.choice(self._plan.prompts)
        request = CompletionRequest(
            f"# {self._nonce} cut {self._asked.number}-{number}\n{prompt.text}",
            max_tokens=TOKENS_TO_CANCEL,
            temperature=self._rng.choice((0.0, 0.8)),
            num_draft_tokens=self._asked.draft_length.at(number)[0],
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
