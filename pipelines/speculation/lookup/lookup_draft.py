"""Drafts by lookup and estimates how many of its tokens will be accepted."""

from __future__ import annotations

from collections.abc import Callable

from pipelines.speculation.lookup.corpus import Corpus, CorpusLookup
from pipelines.speculation.lookup.prompt_lookup import MAX_MATCH, PromptLookup
from pipelines.speculation.token_ids import TokenIds, count_accepted

# Prior acceptance rate of a token by length of the match: longer matches are less likely to be chance. These
# are guesses that a request's own history soon outweighs.
_PRIOR = {3: 0.5, 4: 0.6, 5: 0.7, 6: 0.75, 7: 0.8, MAX_MATCH: 0.9}
# Of a corpus a few tokens match nearly everywhere (docs/decisions/draft-sources.md).
_PRIOR_PER_TOKEN_OF_CORPUS, _LARGEST_PRIOR = 0.06, 0.8
_PRIOR_WEIGHT = 3.0
_MEMORY = 0.93


class LookupDraft:
    """Looks up drafts for one request, in the place that promises most.

    It learns from the request's output how much each of them is worth, whether or not its drafts were used.

    Args:
        known_ids: int32 [n], text that may be repeated, the prompt last.
        corpus: Texts of the operator; None for none.
    """

    def __init__(self, known_ids: TokenIds, corpus: Corpus | None = None) -> None:
        self._places = [_Place(PromptLookup(known_ids), _PRIOR.__getitem__)]
        if corpus is not None:
            self._places.append(_Place(CorpusLookup(corpus, known_ids), _prior_of_corpus))

    @property
    def rate(self) -> float:
        """Expected acceptance of the next proposed token, given those before it; 0 without a match."""
        return max(place.rate(place.lookup.match_length) for place in self._places)

    def propose(self, count: int) -> TokenIds:
        """Return at most ``count`` tokens, int32 [n]; none without a match."""
        best = max(self._places, key=lambda place: place.rate(place.lookup.match_length))
        return best.lookup.propose(count)

    def propose_after(self, token_ids: TokenIds, count: int) -> tuple[TokenIds, float]:
        """Return what ``propose`` and ``rate`` would be after appending at least one token."""
        found = []
        for place in self._places:
            proposed, match_length = place.lookup.propose_after(token_ids, count)
            found.append((proposed, place.rate(match_length)))
        return max(found, key=lambda each: each[1])

    def append(self, token_ids: TokenIds) -> None:
        """Add output tokens and learn from them."""
        for place in self._places:
            place.append(token_ids)


def _prior_of_corpus(match_length: int) -> float:
    return min(_PRIOR_PER_TOKEN_OF_CORPUS * match_length, _LARGEST_PRIOR)


class _Place:
    """One place to look drafts up in, and what its drafts have been worth.

    Args:
        lookup: Finds continuations there.
        prior: Returns the prior acceptance rate of a token for a length of the match.
    """

    def __init__(self, lookup: PromptLookup | CorpusLookup, prior: Callable[[int], float]) -> None:
        self.lookup = lookup
        self._prior = prior
        self._num_right = self._num_expected = _PRIOR_WEIGHT

    def append(self, token_ids: TokenIds) -> None:
        length = self.lookup.match_length
        if length:
            proposed = self.lookup.propose(len(token_ids))
            num_right = count_accepted(proposed, token_ids)
            for index in range(min(num_right + 1, len(proposed))):
                self._num_right = _MEMORY * self._num_right + (index < num_right)
                self._num_expected = _MEMORY * self._num_expected + self._prior(length)
        self.lookup.append(token_ids)

    def rate(self, match_length: int) -> float:
        if not match_length:
            return 0.0
        return min(self._prior(match_length) * self._num_right / self._num_expected, 0.995)
