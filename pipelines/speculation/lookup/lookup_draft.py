"""Drafts by lookup and estimates how many of its tokens will be accepted."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.speculation.lookup.prediction_lookup import PredictionLookup
from pipelines.speculation.lookup.prompt_lookup import MAX_MATCH, MIN_MATCH, PromptLookup
from pipelines.speculation.proposal import Proposal
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds, count_accepted

# Prior acceptance rate of a token by length of the match: longer matches are less likely to be chance. These
# are guesses that a request's own history soon outweighs.
_PRIOR = {3: 0.5, 4: 0.6, 5: 0.7, 6: 0.75, 7: 0.8, MAX_MATCH: 0.9}
# Of a prediction, which the client expects to be right; one token is a match only near the last place.
_PRIOR_OF_PREDICTION = {1: 0.8, 2: 0.9, **dict.fromkeys(range(MIN_MATCH, MAX_MATCH + 1), 0.95)}
_PRIOR_WEIGHT = 3.0
_MEMORY = 0.93


class LookupDraft:
    """Looks up drafts for one request, in the place that promises most.

    It learns from the request's output how much each of them is worth, whether or not its drafts were used.

    Args:
        known_ids: int32 [n], text that may be repeated, the prompt last.
        prediction_ids: int32 [n], what the client expects as the answer; may be empty.
    """

    def __init__(self, known_ids: TokenIds, prediction_ids: TokenIds = NO_TOKENS) -> None:
        self._places = [_Place(PromptLookup(known_ids), _PRIOR)]
        if len(prediction_ids):  # the first of equally good places
            self._places.insert(0, _Place(PredictionLookup(prediction_ids), _PRIOR_OF_PREDICTION))

    @property
    def rate(self) -> float:
        """Expected acceptance of the next proposed token, given those before it; 0 without a match."""
        return max(place.rate(place.lookup.match_length) for place in self._places)

    def propose(self, count: int) -> Proposal:
        """Return a draft of at most ``count`` tokens."""
        best = max(self._places, key=lambda place: place.rate(place.lookup.match_length))
        token_ids = best.lookup.propose(count)
        is_predicted = isinstance(best.lookup, PredictionLookup)
        return Proposal(token_ids, None, num_predicted=len(token_ids) if is_predicted else 0)

    def append(self, token_ids: TokenIds) -> None:
        """Add output tokens and learn from them."""
        for place in self._places:
            place.append(token_ids)


class _Place:
    """One place to look drafts up in, and what its drafts have been worth.

    Args:
        lookup: Finds continuations there.
        prior: Prior acceptance rate of a token by length of the match.
    """

    def __init__(self, lookup: PromptLookup | PredictionLookup, prior: Mapping[int, float]) -> None:
        self.lookup = lookup
        self._prior = prior
        # Of short matches and of others: what the former find tells nothing about the latter.
        self._num_right, self._num_expected = [_PRIOR_WEIGHT] * 2, [_PRIOR_WEIGHT] * 2

    def append(self, token_ids: TokenIds) -> None:
        length = self.lookup.match_length
        if length:
            proposed = self.lookup.propose(len(token_ids))
            num_right = count_accepted(proposed, token_ids)
            kind = length >= MIN_MATCH
            for index in range(min(num_right + 1, len(proposed))):
                self._num_right[kind] = _MEMORY * self._num_right[kind] + (index < num_right)
                self._num_expected[kind] = _MEMORY * self._num_expected[kind] + self._prior[length]
        self.lookup.append(token_ids)

    def rate(self, match_length: int) -> float:
        if not match_length:
            return 0.0
        kind = match_length >= MIN_MATCH
        return min(self._prior[match_length] * self._num_right[kind] / self._num_expected[kind], 0.995)
