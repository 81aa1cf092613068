"""Proposes the tokens that follow the last tokens in a corpus."""

from __future__ import annotations

from pipelines.speculation.lookup.corpus import MAX_MATCH, Corpus
from pipelines.speculation.token_ids import TokenIds


class CorpusLookup:
    """Finds continuations of a growing text in a corpus. Has the interface of ``PromptLookup``.

    Args:
        corpus: Where to look.
        token_ids: int32 [n], the text so far.
    """

    def __init__(self, corpus: Corpus, token_ids: TokenIds) -> None:
        self._corpus = corpus
        self._last: list[int] = token_ids[-MAX_MATCH:].tolist()
        self._place, self.match_length = corpus.find(self._last)

    def append(self, token_ids: TokenIds) -> None:
        """Append tokens."""
        self._last = [*self._last, *token_ids.tolist()][-MAX_MATCH:]
        self._place, self.match_length = self._corpus.find(self._last)

    def propose(self, count: int) -> TokenIds:
        """Return what follows the longest match, int32 [n]: up to ``count`` tokens; none without a match."""
        return self._corpus.continuation(self._place, count)

    def propose_after(self, token_ids: TokenIds, count: int) -> tuple[TokenIds, int]:
        """Return what ``propose`` and ``match_length`` would be after appending at least one token."""
        place, match_length = self._corpus.find([*self._last, *token_ids.tolist()][-MAX_MATCH:])
        return self._corpus.continuation(place, count), match_length
