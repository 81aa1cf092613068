"""Drafts by prompt lookup and estimates how many of its tokens will be accepted."""

from __future__ import annotations

from pipelines.speculation.acceptance import count_accepted
from pipelines.speculation.prompt_lookup import MAX_MATCH, PromptLookup
from pipelines.speculation.token_ids import TokenIds

# Prior acceptance rate of a token by length of the match: longer matches are less likely to be chance. These
# are guesses that a request's own history soon outweighs.
_PRIOR = {3: 0.5, 4: 0.6, 5: 0.7, 6: 0.75, 7: 0.8, MAX_MATCH: 0.9}
_PRIOR_WEIGHT = 3.0
_MEMORY = 0.93


class LookupDraft:
    """Looks up drafts for one request and learns from its output, whether or not they were used.

    Args:
        known_ids: int32 [n], text that may be repeated, the prompt last.
    """

    def __init__(self, known_ids: TokenIds) -> None:
        self._lookup = PromptLookup(known_ids)
        self._num_right = self._num_expected = _PRIOR_WEIGHT

    @property
    def rate(self) -> float:
        """Expected acceptance of the next proposed token, given those before it; 0 without a match."""
        return self._rate(self._lookup.match_length)

    def propose(self, count: int) -> TokenIds:
        """Return ``count`` tokens, int32 [n], or none without a match."""
        return self._lookup.propose(count)

    def propose_after(self, token_ids: TokenIds, count: int) -> tuple[TokenIds, float]:
        """Return what ``propose`` and ``rate`` would be after appending at least one token."""
        found, match_length = self._lookup.propose_after(token_ids, count)
        return found, self._rate(match_length)

    def append(self, token_ids: TokenIds) -> None:
        """Add output tokens and learn from them."""
        length = self._lookup.match_length
        if length:
            num_right = count_accepted(self._lookup.propose(len(token_ids)), token_ids)
            for index in range(min(num_right + 1, len(token_ids))):
                self._num_right = _MEMORY * self._num_right + (index < num_right)
                self._num_expected = _MEMORY * self._num_expected + _PRIOR[length]
        self._lookup.append(token_ids)

    def _rate(self, match_length: int) -> float:
        if not match_length:
            return 0.0
        return min(_PRIOR[match_length] * self._num_right / self._num_expected, 0.995)
