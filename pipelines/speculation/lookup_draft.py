"""Prompt lookup as a draft: what it proposes, and how much of it to expect."""

from __future__ import annotations

from pipelines.speculation.acceptance import count_accepted
from pipelines.speculation.prompt_lookup import MAX_MATCH, PromptLookup
from pipelines.speculation.token_ids import TokenIds

# Acceptance of a token after a match of so many tokens, before anything is known of the text: a longer
# match is less likely to be chance. Guesses; a request's own record soon outweighs them.
_PRIOR = {3: 0.5, 4: 0.6, 5: 0.7, 6: 0.75, 7: 0.8, MAX_MATCH: 0.9}
_PRIOR_WEIGHT = 3.0
_MEMORY = 0.93


class LookupDraft:
    """Follows one request, and compares what it would have proposed with what came, used or not.

    Args:
        prompt_ids: int32 [n].
    """

    def __init__(self, prompt_ids: TokenIds) -> None:
        self._lookup = PromptLookup(prompt_ids)
        self._num_right = self._num_expected = _PRIOR_WEIGHT

    @property
    def rate(self) -> float:
        """Acceptance of the next proposed token, given those before it; 0 without a match."""
        return self._rate(self._lookup.match_length)

    def propose(self, count: int) -> TokenIds:
        """int32 [n], ``count`` tokens or none."""
        return self._lookup.propose(count)

    def propose_after(self, token_ids: TokenIds, count: int) -> tuple[TokenIds, float]:
        """What ``propose`` and ``rate`` would give if ``token_ids``, at least one, came next."""
        found, match_length = self._lookup.propose_after(token_ids, count)
        return found, self._rate(match_length)

    def append(self, token_ids: TokenIds) -> None:
        """Add output tokens, and learn from them."""
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
