"""Follows a text that the client expects as the answer, and finds its place again after a difference.

An edit changes a name and leaves the rest, so what follows a difference stands soon after the last place that
was followed. There one equal token is enough to go on; anywhere else it takes as many as in any other text.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from pipelines.speculation.lookup.prompt_lookup import MAX_MATCH, MIN_MATCH, Places
from pipelines.speculation.token_ids import TokenIds

NEAR = 32
"""Tokens after the last place that was followed in which one equal token is a match."""

_NUM_COMPARED = 64  # other places with the same last tokens, those around the last one followed


class PredictionLookup:
    """Finds the place of a growing answer in its prediction. Has the interface of ``PromptLookup``.

    Attributes:
        match_length: Number of last tokens that stand before the place in the prediction, 0 to ``MAX_MATCH``.
            After a token that is taken to replace one it is 1.

    Args:
        token_ids: int32 [n], the prediction.
    """

    def __init__(self, token_ids: TokenIds) -> None:
        self._tokens: list[int] = token_ids.tolist()
        self._places = Places(token_ids[:-1])
        self._last: tuple[int, ...] = ()  # of the answer
        self._followed = 0  # the place after the last match of at least MIN_MATCH tokens
        self._place = self.match_length = 0

    def append(self, token_ids: TokenIds) -> None:
        """Append tokens of the answer."""
        for token_id in token_ids.tolist():
            self._last = (*self._last, token_id)[-MAX_MATCH:]
            is_followed, after = self.match_length >= MIN_MATCH, self._place + 1
            if is_followed and after < len(self._tokens) and self._tokens[self._place] == token_id:
                self._place, self.match_length = after, min(self.match_length + 1, MAX_MATCH)
            else:
                self._find()
                if is_followed and not self.match_length and after < len(self._tokens):
                    self._place, self.match_length = after, 1  # as if the token replaced one
            if self.match_length >= MIN_MATCH:
                self._followed = self._place

    def propose(self, count: int) -> TokenIds:
        """Return at most ``count`` tokens from the place on, int32 [n]; none without a match."""
        end = self._place + count if self.match_length else self._place
        return np.array(self._tokens[self._place : end], np.int32)

    def _find(self) -> None:
        """Go to the place after the longest match; of equal ones the next after the last one followed."""
        near = range(self._followed + 1, min(self._followed + NEAR + 1, len(self._tokens)))
        found = self._places.after(self._last[-MIN_MATCH:])
        middle = bisect_right(found, self._followed)
        far = found[max(middle - _NUM_COMPARED, 0) : middle + _NUM_COMPARED]
        self._place = max((*near, *far), key=self._merit, default=0)
        self.match_length = self._length_at(self._place)

    def _merit(self, place: int) -> tuple[int, bool, int]:
        return self._length_at(place), place > self._followed, -abs(place - self._followed)

    def _length_at(self, place: int) -> int:
        length = 0
        while (
            length < min(len(self._last), place)
            and self._last[-length - 1] == self._tokens[place - length - 1]
        ):
            length += 1
        return length
