"""Proposes the tokens that followed an earlier occurrence of the last tokens, at no cost.

Source: prompt lookup decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding), here over earlier
answers, prompt and output, with an index that grows by one entry per token.
"""

from __future__ import annotations

import itertools

import numpy as np

from pipelines.speculation.token_ids import NO_TOKENS, TokenIds

MIN_MATCH = 3
"""Tokens that must match; with fewer, common pairs of tokens would match everywhere."""

MAX_MATCH = 8
"""Longer matches are not distinguished."""


class PromptLookup:
    """Finds continuations in a growing sequence.

    Args:
        token_ids: int32 [n], the sequence so far.
    """

    def __init__(self, token_ids: TokenIds) -> None:
        tokens: list[int] = token_ids[:-1].tolist()
        self._tokens = tokens
        # Last tokens -> the position after them. Built at once, because a prompt may have many thousands.
        self._latest: dict[tuple[int, ...], int] = dict(
            zip(zip(tokens, tokens[1:], tokens[2:], strict=False), itertools.count(MIN_MATCH), strict=False)
        )
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
            self._after_match = self._latest.get(last, 0)
            self._latest[last] = end

    @property
    def match_length(self) -> int:
        """Number of last tokens that occurred before: 0, or 3 to ``MAX_MATCH``."""
        return self._match_length(self._after_match)

    def propose(self, count: int) -> TokenIds:
        """Return what followed the earlier occurrence, int32 [count]; empty without a match.

        If the continuation reaches the end of the sequence it wraps around, so periodic text is continued
        with its period.
        """
        return self._continuation(self._after_match, count)

    def propose_after(self, token_ids: TokenIds, count: int) -> tuple[TokenIds, int]:
        """Return what ``propose`` and ``match_length`` would be after appending at least one token."""
        num_known = len(self._tokens)
        self._tokens.extend(token_ids.tolist())
        after_match = self._latest.get(tuple(self._tokens[-MIN_MATCH:]), 0)
        found = self._continuation(after_match, count), self._match_length(after_match)
        del self._tokens[num_known:]
        return found

    def _match_length(self, after_match: int) -> int:
        if not after_match:
            return 0
        length = MIN_MATCH
        end = len(self._tokens)
        while length < MAX_MATCH and length < after_match:
            if self._tokens[after_match - length - 1] != self._tokens[end - length - 1]:
                break
            length += 1
        return length

    def _continuation(self, after_match: int, count: int) -> TokenIds:
        if not after_match:
            return NO_TOKENS
        period = len(self._tokens) - after_match
        return np.array([self._tokens[after_match + index % period] for index in range(count)], np.int32)
