"""Collects the chunks of an answer as a client would, compares two answers, and records both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np

from pipelines.errors import DraftproofError
from pipelines.router.breaker import FAILURES, outcome_of
from pipelines.router.observation import (
    Difference,
    Divergence,
    Failure,
    Observation,
    Rightness,
)
from pipelines.speculation.token_ids import count_accepted
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.chunk import Chunk, TopLogProbs
from pipelines.wire.messages import EngineRequest, encoded

_MOST_SHOWN = 200  # characters of a differing value


class ReceivedAnswer:
    """The chunks of one answer, joined as a client joins them.

    Attributes:
        output_ids: Tokens of all chunks so far.
        text: Text of all chunks so far.
        log_probs: Log probabilities of all chunks so far; empty if they were not requested.
        fault: The first contradiction between a chunk and those before it; "" for none.
        last: The latest chunk; None before the first.
    """

    def __init__(self) -> None:
        self.output_ids: list[int] = []
        self.text = ""
        self.log_probs: list[float] = []
        self.top_log_probs: TopLogProbs = ()
        self.fault = ""
        self.last: Chunk | None = None
        self._cum_log_prob = 0.0

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk, with its text."""
        self.last = chunk
        self.output_ids.extend(chunk.output_ids)
        self.text += chunk.text
        self.log_probs.extend(chunk.log_probs)
        self.top_log_probs += chunk.top_log_probs
        self.fault = self.fault or self._contradiction(chunk)

    @property
    def whole(self) -> Chunk:
        """The latest chunk of a complete answer."""
        assert self.last is not None
        return self.last

    @property
    def scores(self) -> Hashable:
        """All log probabilities and their sum; nothing if they were not requested."""
        if not self.log_probs:
            return ()
        return tuple(self.log_probs), self.top_log_probs, self.whole.cum_log_prob

    def _contradiction(self, chunk: Chunk) -> str:
        """Describe how the latest chunk contradicts the earlier ones; "" if it does not."""
        said, received = chunk.sequence_length, len(self.output_ids)
        if said != received:
            return f"sequence_length={said} after {received} tokens"
        if not chunk.log_probs:
            return ""
        if len(chunk.log_probs) != len(chunk.output_ids):
            return f"{len(chunk.log_probs)} log probabilities of {len(chunk.output_ids)} tokens"
        for value in chunk.log_probs:  # one by one, in the order in which the server sums them
            self._cum_log_prob += value
        if self._cum_log_prob != chunk.cum_log_prob:
            own_sum = f"log probabilities of {self._cum_log_prob:.9g}"
            return f"cum_log_probs={chunk.cum_log_prob:.9g} after {own_sum}"
        return ""


# In the order of comparison: answers with different tokens differ in most of the others too.
_COMPARED: dict[Difference, Callable[[ReceivedAnswer], Hashable]] = {
    "tokens": lambda answer: tuple(answer.output_ids),
    "text": lambda answer: answer.text,
    "finish_reason": lambda answer: answer.whole.finish_reason,
    "sequence_length": lambda answer: answer.whole.sequence_length,
    "chunks": lambda answer: answer.fault,
    "log_probs": lambda answer: answer.scores,
}

_SHOWN_BY_TEXTS = ("tokens", "text")


def first_difference(expected: ReceivedAnswer, candidate: ReceivedAnswer) -> Difference:
    """Return the first difference that a client would notice; "" if there is none."""
    return next((name for name, of in _COMPARED.items() if of(expected) != of(candidate)), "")


def shown_value(differs_in: Difference, answer: ReceivedAnswer) -> str:
    """Return the differing value of an answer for display; "" if its text shows it."""
    if differs_in in _SHOWN_BY_TEXTS:
        return ""
    if differs_in == "log_probs":
        return _shown_log_probs(answer)
    return str(_COMPARED[differs_in](answer))[:_MOST_SHOWN]


def _shown_log_probs(answer: ReceivedAnswer) -> str:
    if not answer.log_probs:
        return "none"
    return f"cum_log_probs={answer.whole.cum_log_prob:.9g}; {answer.log_probs}"[:_MOST_SHOWN]


def prompt_id(request: EngineRequest) -> str:
    """Hash everything that determines an answer: prompt, limits, sampling, and the seed unless greedy."""
    sampling = replace(request.sampling, seed=0) if request.sampling.is_greedy else request.sampling
    of_the_answer = replace(
        request,
        sampling=sampling,
        request_id="",
        timeout_us=0,
        streaming=True,
        session_id="",
        num_draft_tokens=None,
        prediction_ids=(),
    )
    return hashlib.blake2b(encoded(of_the_answer), digest_size=16).hexdigest()


def with_answer(observation: Observation, received: ReceivedAnswer) -> Observation:
    """Return the observation with the counts of a complete answer."""
    return replace(
        observation,
        num_output_tokens=len(received.output_ids),
        drafted_per_round=received.whole.drafted_per_round,
        accepted_per_round=received.whole.accepted_per_round,
    )


def num_common_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of tokens that both answers have in common at the start."""
    return count_accepted(np.array(one, np.int32), np.array(other, np.int32))


def failure_of(error: DraftproofError) -> Failure:
    """Return the failure to record for an error; "" if the arm did not cause it."""
    return "error" if outcome_of(error) in FAILURES else ""


def with_comparison(
    observation: Observation,
    request: EngineRequest,
    expected_of: Rightness,
    expected: ReceivedAnswer,
    candidate: ReceivedAnswer,
    vocabulary: Vocabulary,
) -> Observation:
    """Return the observation of a replay with the first difference from the expected answer."""
    differs_in = first_difference(expected, candidate)
    if not differs_in:
        return replace(observation, answer="equal")
    said = shown_value(differs_in, expected), shown_value(differs_in, candidate)
    divergence = Divergence(
        _prompt(request, vocabulary),
        expected_of,
        differs_in,
        expected.text,
        candidate.text,
        num_common_tokens(expected.output_ids, candidate.output_ids),
        *said,
    )
    return _diverged(observation, differs_in, divergence)


def with_chunk_check(
    observation: Observation, request: EngineRequest, received: ReceivedAnswer, vocabulary: Vocabulary
) -> Observation:
    """Return the observation with a check that the chunks of the answer do not contradict each other."""
    if not received.fault:
        return observation
    num_tokens = len(received.output_ids)
    divergence = Divergence(
        _prompt(request, vocabulary),
        "itself",
        "chunks",
        received.text,
        received.text,
        num_tokens,
        "",
        received.fault,
    )
    return _diverged(observation, "chunks", divergence)


def _diverged(observation: Observation, differs_in: Difference, divergence: Divergence) -> Observation:
    return replace(observation, answer="diverged", differs_in=differs_in, divergence=divergence)


def _prompt(request: EngineRequest, vocabulary: Vocabulary) -> str:
    return vocabulary.join(request.input_ids).decode("utf-8", "replace")
