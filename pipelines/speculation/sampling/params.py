"""Defines the sampling parameters of a request."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError

MAX_SEED = 2**64 - 1
MAX_LOGIT_BIASES = 1024  # vLLM and OpenAI allow about 300
MAX_LOGIT_BIAS = 100.0  # OpenAI's limits for this and the next
MAX_ADDED_PENALTY = 2.0

_DRAWN_SEED_BITS = 53  # exactly representable in JSON parsers that only support doubles


# Name, least and largest value, whether it must be above the least one, and what to send instead.
_RANGES: tuple[tuple[str, float, float, bool, str], ...] = (
    ("temperature", 0.0, math.inf, False, "send 0 for greedy decoding"),
    ("top_k", 0, math.inf, False, "send 0 to sample among all tokens"),
    ("top_p", 0.0, 1.0, True, "send 1 to sample among all tokens"),
    ("min_p", 0.0, 1.0, False, "send 0 to sample among all tokens"),
    ("repetition_penalty", 0.0, math.inf, True, "send 1 for no penalty"),
    ("presence_penalty", -MAX_ADDED_PENALTY, MAX_ADDED_PENALTY, False, "send 0 for no penalty"),
    ("frequency_penalty", -MAX_ADDED_PENALTY, MAX_ADDED_PENALTY, False, "send 0 for no penalty"),
    ("min_tokens", 0, math.inf, False, "send 0 for no minimum"),
    ("seed", 0, MAX_SEED, False, "send an unsigned 64-bit integer, or none"),
)


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters; ``logits_processing`` defines the order in which they are applied.

    Attributes:
        temperature: 0 for greedy decoding; otherwise the logits are divided by it.
        top_k: Sample from the ``top_k`` most likely tokens; 0 for all.
        top_p: Sample from the fewest tokens whose probabilities sum to at least ``top_p``, in (0, 1].
        min_p: Sample from tokens at least ``min_p`` times as likely as the most likely one, in [0, 1].
        repetition_penalty: Above 1 makes tokens of prompt and output less likely: a positive logit is
            divided by it, a negative one multiplied. Above 0; 1 for none.
        presence_penalty: Subtracted once from the logit of every token in the output, in [-2, 2].
        frequency_penalty: Subtracted from the logit of a token for each occurrence in the output, in [-2, 2].
        min_tokens: Minimum length of the output: until then, no end token can be chosen, and stop words must
            begin after it.
        logit_bias: Token ids and the values added to their logits, in [-100, 100]; at most 1,024, no id
            twice.
        seed: Key of the noise, 0 to 2**64 - 1. The same seed gives the same output.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always chosen."""
        return self.temperature == 0.0

    @property
    def has_penalty(self) -> bool:
        """Whether a penalty applies, so that choices depend on earlier tokens."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @cached_property
    def bias(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
        """``logit_bias`` as arrays: ids [n] and values [n]; cached because each round uses them."""
        ids = np.array([token_id for token_id, _ in self.logit_bias], np.intp)
        return ids, np.array([value for _, value in self.logit_bias], np.float64)

    def validate(self, vocab_size: int) -> None:
        """Refuse invalid values; nothing is clamped.

        Args:
            vocab_size: Logits per position, for the ids of ``logit_bias``.

        Raises:
            InvalidRequestError: A value is NaN, infinite or outside its range.
        """
        if vocab_size in self._valid_for:  # each round of a request asks again
            return
        check_ranges({name: getattr(self, name) for name, *_ in _RANGES})
        if self.logit_bias:
            self._validate_logit_bias(vocab_size)
        self._valid_for.add(vocab_size)

    @cached_property
    def _valid_for(self) -> set[int]:
        """Sizes of vocabularies for which the values were found valid."""
        return set()

    def _validate_logit_bias(self, vocab_size: int) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIASES:
            raise InvalidRequestError(
                f"logit_bias has {len(self.logit_bias)} entries, more than {MAX_LOGIT_BIASES}",
                "send the most important ones; use bad_words to forbid texts",
            )
        ids, values = self.bias
        is_repeated = np.ones(len(ids), np.bool_)
        is_repeated[np.unique(ids, return_index=True)[1]] = False
        is_wrong = is_repeated | (ids < 0) | (ids >= vocab_size)
        if is_wrong.any():
            first = int(np.argmax(is_wrong))
            problem = (
                "is given twice" if is_repeated[first] else f"is not a token, which are 0 to {vocab_size - 1}"
            )
            raise InvalidRequestError(
                f"id {ids[first]} of logit_bias {problem}",
                "send each token id of the model's vocabulary at most once",
            )
        is_wrong = ~(np.abs(values) <= MAX_LOGIT_BIAS)  # NaN, too
        if is_wrong.any():
            first = int(np.argmax(is_wrong))
            check_range(
                f"the logit_bias of token {ids[first]}",
                float(values[first]),
                -MAX_LOGIT_BIAS,
                MAX_LOGIT_BIAS,
                "to forbid a token send -100 or name its text in bad_words",
            )


GREEDY = SamplingParams()


def check_ranges(values: Mapping[str, float]) -> None:
    """Refuse values of sampling parameters that a request may not have.

    Args:
        values: Name -> value; names of other parameters are ignored.

    Raises:
        InvalidRequestError: A value is NaN, infinite or outside its range.
    """
    for name, minimum, maximum, is_open, remedy in _RANGES:
        if name in values:
            check_range(name, values[name], minimum, maximum, remedy, is_open=is_open)


def draw_seed() -> int:
    """Draw a seed for a request without one."""
    return secrets.randbits(_DRAWN_SEED_BITS)


def check_range(
    name: str, value: float, minimum: float, maximum: float, remedy: str, *, is_open: bool = False
) -> None:
    """Refuse a value that is not finite or outside of its range.

    Args:
        name: What the client calls it.
        value: The value.
        minimum: Least value; with ``is_open`` the value must be above it.
        maximum: Largest value; infinite for none.
        remedy: What to send instead.
        is_open: See ``minimum``.

    Raises:
        InvalidRequestError: The value is not in the range.
    """
    if math.isfinite(value) and minimum <= value <= maximum and not (is_open and value == minimum):
        return
    limit = f"{'above' if is_open else 'at least'} {minimum:g}"
    limit += f" and at most {maximum:g}" if math.isfinite(maximum) else " and finite"
    raise InvalidRequestError(f"{name} is out of range: {name}={value}, but it must be {limit}", remedy)
