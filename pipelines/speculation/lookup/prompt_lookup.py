"""Proposes the tokens that followed an earlier occurrence of the last tokens, at no cost.

Source: prompt lookup decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding), here over earlier
answers, prompt and output. What is known at first is indexed by sorting, because all requests wait meanwhile:
100,000 tokens take about 10 ms. The output adds an entry per token.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipelines.speculation.token_ids import NO_TOKENS, TokenIds

MIN_MATCH = 3
"""Tokens that must match; with fewer, common pairs of tokens would match everywhere."""

MAX_MATCH = 8
"""Longer matches are not distinguished."""


_TOKEN_BITS = 21  # more than any vocabulary needs; three fit 64


class Places:
    """The places after each ``MIN_MATCH`` tokens of a text.

    Args:
        token_ids: int32 [n], the text.
    """

    def __init__(self, token_ids: TokenIds) -> None:
        wide = token_ids.astype(np.int64)
        keys = _key(wide[:-2], wide[1:-1], wide[2:])
        order = np.argsort(keys, kind="stable")
        # Single numbers are read faster than from arrays.
        self._keys, self._places = keys[order].data, (order + MIN_MATCH).data

    def after(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Return the places after ``MIN_MATCH`` tokens in ascending order; none for fewer tokens."""
        if len(token_ids) < MIN_MATCH:
            return ()
        key = _key(*token_ids)
        begin = bisect_left(self._keys, key)
        return self._places[begin : bisect_right(self._keys, key, begin)]


def _key(first: Any, second: Any, third: Any) -> Any:
    return first << 2 * _TOKEN_BITS | second << _TOKEN_BITS | third


class PromptLookup:
    """Finds continuations in a growing sequence.

    Args:
        token_ids: int32 [n], the sequence so far.
    """

    def __init__(self, token_ids: TokenIds) -> None:
        self._tokens: list[int] = token_ids[:-1].tolist()
        self._first = Places(token_ids[:-1])
        self._latest: dict[tuple[int, ...], int] = {}  # last tokens that were appended -> position after them
        # The position after the earlier occurrence of the last tokens; 0 for none.
        self._after_match = 0
        self.append(token_ids[-1:])

    def append(self, token_ids: TokenIds) -> None:
        """Append tokens."""
        for token_id in token_ids.tolist():
            self._tokens.append(token_id)
            end = len(self._tokens)
            if end < MIN_MATCH:
                continue
            last = tuple(self._tokens[end - MIN_MATCH : end])
            self._after_match = self._after(last)
            self._latest[last] = end

    @property
    def match_length(self) -> int:
        """Number of last tokens that occurred before: 0, or 3 to ``MAX_MATCH``."""
        if not self._after_match:
            return 0
        length = MIN_MATCH
        end = len(self._tokens)
        while length < MAX_MATCH and length < self._after_match:
            if self._tokens[self._after_match - length - 1] != self._tokens[end - length - 1]:
                break
            length += 1
        return length

    def propose(self, count: int) -> TokenIds:
        """Return what followed the earlier occurrence, int32 [count]; empty without a match.

        If the continuation reaches the end of the sequence it wraps around, so periodic text is continued
        with its period.
        """
        if not self._after_match:
            return NO_TOKENS
        period = len(self._tokens) - self._after_match
        return np.array(
            [self._tokens[self._after_match + index % period] for index in range(count)], np.int32
        )

    def _after(self, last: tuple[int, ...]) -> int:
        """Return the latest place after ``MIN_MATCH`` tokens; 0 for none."""
        return self._latest.get(last) or max(self._first.after(last)[-1:], default=0)
