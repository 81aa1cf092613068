"""Passes hidden states from the target to a trained head.

A head (EAGLE-3, arXiv 2503.01840) computes one layer from a token and the target's hidden states at the
position before it; behind the last known token, from its own output at that position. So it has no position
for the first token of a text: its position j is that of token j + 1, with the target's states at position j.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from pipelines.speculation.request import MAX_STATES, TargetStates

States = npt.NDArray[np.float32]


class ReturnedStates:
    """Collects the states of a request's positions, which its next output returns."""

    def __init__(self) -> None:
        self._parts: deque[States] = deque()
        self._end = 0

    def add(self, start: int, states: States) -> None:
        """Add a copy of the states from a position on, float32 [n, size]; known ones stay as they are."""
        if start > self._end:
            self._parts.clear()  # the positions between are cached
        new = states[max(self._end - start, 0) :]
        if len(new):
            self._parts.append(new.copy())
            self._end = start + len(states)
        while self._parts and sum(map(len, self._parts)) - MAX_STATES >= len(self._parts[0]):
            self._parts.popleft()

    def take(self, end: int) -> States | None:
        """Return the states before a position, float32 [n, size], and forget all; None if there are none."""
        if not self._parts:
            return None
        states = np.concatenate(self._parts)
        num_rejected = self._end - end
        self._parts.clear()
        self._end = end
        return states[: len(states) - num_rejected][-MAX_STATES:]


class HeadStates:
    """Holds what a head reads beside the tokens of one request.

    Attributes:
        num_known: Number of positions of known tokens.
        num_unknown: Number of leading positions without states, which therefore have to be cached.
        hidden: float32 [1, hidden], output of the head at the last position that it has computed.

    Args:
        target: States of the last positions of known tokens.
        num_known: See the attribute.
    """

    def __init__(self, target: TargetStates, num_known: int) -> None:
        self.num_known = num_known
        self._values = np.concatenate(target.parts)
        self.num_unknown = num_known - len(self._values)
        self.hidden: States | None = None
        self._begin = target.begin

    def of(self, start: int, count: int) -> States:
        """Return the target's states of ``count`` positions, float32 [n, size]: none for a drafted token."""
        return self._values[start - self.num_unknown :][:count]

    def shorten(self) -> int:
        """Leave out leading positions that are neither known nor cached; return their number.

        At first those before the request's first state, so that the rounds of a request share a context.
        """
        count = self._begin or self.num_unknown
        self._begin = 0
        self.num_known -= count
        self.num_unknown -= count
        return count
