"""Collects the responses of an answer as a client would, and compares two answers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.router.observation import Difference
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.answer import spell
from pipelines.wire.calls import Tensors

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
