"""Compares two answers as clients received them, and records what was received.

An arm may be an engine, whose answers are tokens, or any server, whose answers are the bytes of OpenAI's API.
Both are compared here, so every rollout is judged in one way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile
from typing import Any, get_args

from pipelines.router.arms import Expected
from pipelines.router.observation import Difference, Divergence, Observation, unix_time_s

CHARACTERS_PER_TOKEN = 4
"""Length of a token where an arm does not count them; both arms are then counted alike."""

_DIFFERENCES: tuple[Difference, ...] = get_args(Difference)[1:]
_MOST_SHOWN = 200  # characters of a differing value


class ReceivedAnswer(ABC):
    """What a client has received of an answer so far.

    Attributes:
        fault: What is wrong with it, in words; "" if nothing is so far. Such an answer counts as none.
        first_at_s: When the first token came; None before, and for an answer in one piece.
        longest_pause_s: Longest time between two parts of a stream; None before the second.

    Args:
        is_stream: Whether it comes in parts.
        clock: Returns the unix time.
    """

    def __init__(self, *, is_stream: bool, clock: Callable[[], float] = unix_time_s) -> None:
        self.fault = ""
        self.first_at_s: float | None = None
        self.longest_pause_s: float | None = None
        self._is_stream = is_stream
        self._clock = clock
        self._latest_at_s = 0.0

    @property
    @abstractmethod
    def text(self) -> str:
        """All of it as text."""

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Number of its tokens."""

    @property
    def rounds(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Draft tokens that each target pass verified, and accepted; empty if the arm does not say."""
        return (), ()

    @abstractmethod
    def told(self, what: Difference) -> Any:
        """Return what must be equal in two answers; None for what the arm does not tell."""

    def num_common(self, other: ReceivedAnswer) -> int:
        """Return the number of tokens that both have in common at the start."""
        equal = takewhile(lambda pair: pair[0] == pair[1], zip(self.text, other.text, strict=False))
        return sum(1 for _ in equal) // CHARACTERS_PER_TOKEN

    def cut(self, why: str) -> None:
        """Note that no more of it comes, though there should be."""
        self.fault = self.fault or why

    def _note_part(self) -> None:
        """Note that a part with a token has come."""
        if not self._is_stream:
            return
        now_s = self._clock()
        if self.first_at_s is None:
            self.first_at_s = now_s
        else:
            self.longest_pause_s = max(self.longest_pause_s or 0.0, now_s - self._latest_at_s)
        self._latest_at_s = now_s


def first_difference(expected: ReceivedAnswer, answer: ReceivedAnswer) -> Difference:
    """Return the first difference that a client would notice; "" if there is none.

    What one arm does not tell, such as token ids, cannot differ.
    """
    for what in _DIFFERENCES:
        both = expected.told(what), answer.told(what)
        if None not in both and both[0] != both[1]:
            return what
    return ""


def with_answer(observation: Observation, answer: ReceivedAnswer) -> Observation:
    """Return the observation with what was received; an answer with a fault is a failure."""
    if answer.fault:
        return replace(observation, failure="error", fault=answer.fault, e2e_latency_s=None)
    drafted, accepted = answer.rounds
    return replace(
        observation,
        ttft_s=None if answer.first_at_s is None else answer.first_at_s - observation.arrived_at_s,
        longest_pause_s=answer.longest_pause_s,
        num_output_tokens=answer.num_tokens,
        drafted_per_round=drafted,
        accepted_per_round=accepted,
    )


def with_comparison(
    observation: Observation,
    prompt: str,
    expected_of: Expected,
    expected: ReceivedAnswer,
    answer: ReceivedAnswer,
) -> Observation:
    """Return the observation of a replay with the first difference from the expected answer."""
    differs_in = first_difference(expected, answer)
    if not differs_in:
        return replace(observation, answer="equal")
    texts, shown = (expected.text, answer.text), ("", "")
    if texts[0] == texts[1]:
        shown = str(expected.told(differs_in))[:_MOST_SHOWN], str(answer.told(differs_in))[:_MOST_SHOWN]
    divergence = Divergence(prompt, expected_of, differs_in, *texts, expected.num_common(answer), *shown)
    return replace(observation, answer="diverged", differs_in=differs_in, divergence=divergence)
