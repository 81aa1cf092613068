"""Collects the responses of an answer as a client would, compares two answers, and records both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

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
from pipelines.wire.answer import spell
from pipelines.wire.calls import Call, Tensors
from pipelines.wire.tensors import read_scalar

_LOG_PROBS = ("output_log_probs", "top_log_prob_ids", "top_log_probs")
_MOST_SHOWN = 200  # characters of a differing value


class ReceivedAnswer:
    """The responses of one answer, joined as a client joins them.

    Attributes:
        output_ids: Tokens of all responses so far.
        text: Text of all responses so far.
        fault: The first contradiction between a response and those before it; "" for none.
        last: Outputs of the latest response.

    Args:
        vocabulary: Bytes of the tokens.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.output_ids: list[int] = []
        self.text = ""
        self.fault = ""
        self.last: Tensors = {}
        self._vocabulary = vocabulary
        self._log_probs: dict[str, list[bytes]] = {name: [] for name in _LOG_PROBS}
        self._cum_log_prob = 0.0

    def add(self, outputs: Tensors) -> None:
        """Add the next response.

        Args:
            outputs: Outputs of a pair's model, including ``text_length``.
        """
        before, self.last = self.last, outputs
        ids = outputs["output_ids"].reshape(-1).tolist()
        self.output_ids.extend(ids)
        self.text += spell(outputs, self._vocabulary)
        for name, received in self._log_probs.items():
            if name in outputs and outputs[name].size:
                received.append(outputs[name].tobytes())
        self.fault = self.fault or self._contradiction(before, len(ids))

    @property
    def finish_reason(self) -> str:
        """Finish reason of the latest response."""
        return _text(self.last["finish_reason"])

    @property
    def sequence_length(self) -> int:
        """Sequence length according to the latest response."""
        return int(self.last["sequence_length"].item())

    @property
    def log_probs(self) -> tuple[bytes, ...]:
        """Bytes of all log probabilities and their sum; empty if they were not requested."""
        each = tuple(b"".join(received) for received in self._log_probs.values())
        return (*each, self.last["cum_log_probs"].tobytes()) if any(each) else ()

    def _contradiction(self, before: Tensors, num_new: int) -> str:
        """Describe how the latest response contradicts the earlier ones; "" if it does not."""
        outputs = self.last
        if before and (ended := _text(before["finish_reason"])):
            return f"the answer continues after finish_reason={ended}"
        said, received = self.sequence_length, len(self.output_ids)
        if said != received:
            return f"sequence_length={said} after {received} tokens"
        log_probs = outputs["output_log_probs"].reshape(-1)
        if not log_probs.size:
            return ""
        if log_probs.size != num_new:
            return f"{log_probs.size} log probabilities of {num_new} tokens"
        for value in log_probs.tolist():  # one by one, in the order in which the server sums them
            self._cum_log_prob += value
        cum_log_prob = outputs["cum_log_probs"].item()
        if np.float32(self._cum_log_prob) != cum_log_prob:
            return f"cum_log_probs={cum_log_prob:.9g} after log probabilities of {self._cum_log_prob:.9g}"
        return ""


def _text(array: npt.NDArray[Any]) -> str:
    return bytes(array.item()).decode("utf-8", "replace")


# In the order of comparison: answers with different tokens differ in most of the others too.
_COMPARED: dict[Difference, Callable[[ReceivedAnswer], Hashable]] = {
    "tokens": lambda answer: tuple(answer.output_ids),
    "text": lambda answer: answer.text,
    "finish_reason": lambda answer: answer.finish_reason,
    "sequence_length": lambda answer: answer.sequence_length,
    "chunks": lambda answer: answer.fault,
    "log_probs": lambda answer: answer.log_probs,
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
    values = np.frombuffer(answer.log_probs[0], np.float32)
    return f"cum_log_probs={answer.last['cum_log_probs'].item():.9g}; {values.tolist()}"[:_MOST_SHOWN]


_NOT_OF_THE_ANSWER = frozenset({"streaming", "session_id", "num_draft_tokens", "prediction_ids"})


def prompt_id(tensors: Mapping[str, npt.NDArray[Any]]) -> str:
    """Hash everything that determines an answer: prompt, limits, sampling, and the seed unless greedy."""
    left_out = _NOT_OF_THE_ANSWER
    if read_scalar(tensors, "temperature", float, 0.0) == 0:
        left_out = left_out | {"seed"}
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(set(tensors) - left_out):
        array = tensors[name]
        values = array.tolist() if array.dtype == np.object_ else array.tobytes()
        digest.update(
            f"{name}{array.shape}".encode() + (repr(values).encode() if isinstance(values, list) else values)
        )
    return digest.hexdigest()


def is_streamed(call: Call) -> bool:
    """Whether the client asked for a streamed answer."""
    return bool(read_scalar(call.tensors, "streaming", bool, False))


def is_comparable(call: Call) -> bool:
    """Whether pairs with the same target must answer alike; with the ratio rule, samples differ."""
    return not read_scalar(call.tensors, "use_draft_logits", bool, False)


def with_answer(observation: Observation, received: ReceivedAnswer) -> Observation:
    """Return the observation with the counts of a complete answer."""
    rounds: dict[str, Any] = {}
    names = "drafted_per_round", "accepted_per_round"
    if set(names) <= set(received.last):  # absent if the target answered alone
        rounds = {name: tuple(received.last[name].reshape(-1).tolist()) for name in names}
    return replace(observation, num_output_tokens=len(received.output_ids), **rounds)


def num_common_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of tokens that both answers have in common at the start."""
    return count_accepted(np.array(one, np.int32), np.array(other, np.int32))


def failure_of(error: DraftproofError) -> Failure:
    """Return the failure to record for an error; "" if the arm did not cause it."""
    return "error" if outcome_of(error) in FAILURES else ""


def with_comparison(
    observation: Observation,
    call: Call,
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
        _prompt(call, vocabulary),
        expected_of,
        differs_in,
        expected.text,
        candidate.text,
        num_common_tokens(expected.output_ids, candidate.output_ids),
        *said,
    )
    return _diverged(observation, differs_in, divergence)


def with_chunk_check(
    observation: Observation, call: Call, received: ReceivedAnswer, vocabulary: Vocabulary
) -> Observation:
    """Return the observation with a check that the chunks of the answer do not contradict each other."""
    if not received.fault:
        return observation
    num_tokens = len(received.output_ids)
    divergence = Divergence(
        _prompt(call, vocabulary),
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


def _prompt(call: Call, vocabulary: Vocabulary) -> str:
    return vocabulary.join(call.tensors["input_ids"].reshape(-1).tolist()).decode("utf-8", "replace")
