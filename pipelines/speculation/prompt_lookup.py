"""Draft tokens for nothing: what followed the last tokens when they stood in the text before.

Source: prompt lookup decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding); here over
prompt and output, with an index that grows by one entry per token.
"""

from __future__ import annotations

import numpy as np

from pipelines.speculation.token_ids import NO_TOKENS, TokenIds

_MIN_MATCH = 3
"""Tokens that must be equal; with fewer, common pairs of tokens match everywhere."""

MAX_MATCH = 8
"""Longer matches are not told apart."""


class PromptLookup:
    """Finds continuations in one growing sequence.

    Args:
        token_ids: int32 [n], the prompt.
    """

    def __init__(self, token_ids: TokenIds) -> None:
        self._tokens: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}
        # Where the last tokens stood before: the position after them; 0 for nowhere.
        self._after_match = 0
        self.append(token_ids)

    def append(self, token_ids: TokenIds) -> None:
        """Add tokens at the end."""
        for token_id in token_ids.tolist():
            self._tokens.append(token_id)
            end = len(self._tokens)
            if end < _MIN_MATCH:
                continue
            last = tuple(self._tokens[end - _MIN_MATCH : end])
            self._after_match = self._latest.get(last, 0)
            self._latest[last] = end

    @property
    def match_length(self) -> int:
        """How many of the last tokens stood before in the same order: 0, or 3 to ``MAX_MATCH``."""
        return self._match_length(self._after_match)

    def propose(self, count: int) -> TokenIds:
        """What followed then, int32 [count]; nothing without a match.

        Where what followed leads into the last tokens themselves, it goes round: text that repeats with a
        period is continued with it.
        """
        return self._continuation(self._after_match, count)

    def propose_after(self, token_ids: TokenIds, count: int) -> tuple[TokenIds, int]:
        """What ``propose`` and ``match_length`` would give if ``token_ids``, at least one, came next."""
        num_known = len(self._tokens)
        self._tokens.extend(token_ids.tolist())
        after_match = self._latest.get(tuple(self._tokens[-_MIN_MATCH:]), 0)
        found = self._continuation(after_match, count), self._match_length(after_match)
        del self._tokens[num_known:]
        return found

    def _match_length(self, after_match: int) -> int:
        if not after_match:
            return 0
        length = _MIN_MATCH
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
