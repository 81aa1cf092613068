"""Holds texts of the operator in which drafts are looked up, with an index of all places in them.

The index sorts all places by the tokens before them, the last of these first. So the places after the same
tokens lie beside each other, and those after more of them are a part of these.

Source: Manber and Myers 1993, doi:10.1137/0222058; for drafts: REST (He et al. 2023, arXiv:2311.08252).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError
from pipelines.speculation.lookup.prompt_lookup import MIN_MATCH
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds

MAX_TOKENS = 1 << 24
"""Most tokens of a corpus, and one for each text. A server needs 8 bytes for each."""

MAX_MATCH = 16
"""Longer matches are not distinguished. In much text, long ones are needed to tell the right place."""

_END = -1  # between texts, and MAX_MATCH times before the first
_NUM_COMPARED = 64  # places after equal tokens, at most


class Corpus:
    """Texts and the index of their places.

    Attributes:
        token_ids: int32 [n], texts between ``_END`` marks.
        places: int32 [m], the indices of tokens, sorted by the ``MAX_MATCH`` tokens before them.
    """

    def __init__(self, token_ids: TokenIds, places: npt.NDArray[np.int32]) -> None:
        self.token_ids = token_ids
        self.places = places
        before = token_ids[places - 1]
        self._begins = np.searchsorted(before, np.arange(before.max(initial=0) + 2))  # by the last token
        # Single numbers are read faster than from arrays.
        self._token_at, self._place_at = token_ids.data, places.data

    @classmethod
    def of(cls, texts: Iterable[TokenIds]) -> Corpus:
        """Index texts.

        Args:
            texts: int32 [n] each.

        Raises:
            InvalidRequestError: They are larger than ``MAX_TOKENS`` together.
        """
        end = np.array([_END], np.int32)
        parts = [np.full(MAX_MATCH, _END, np.int32)]
        num_tokens = 0
        for text in texts:
            parts += [text, end]
            num_tokens += len(text) + 1
            if num_tokens > MAX_TOKENS:
                raise InvalidRequestError(
                    "the corpus is too large",
                    values=f"more than {num_tokens:,} tokens",
                    limit=f"at most {MAX_TOKENS:,}",
                    remedy="leave out files",
                )
        token_ids = np.concatenate(parts)
        places = np.flatnonzero(token_ids != _END).astype(np.int32)
        for distance in range(MAX_MATCH, 0, -1):  # the most important last
            places = places[np.argsort(token_ids[places - distance], kind="stable")]
        return cls(token_ids, places)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the texts."""
        return len(self.places)

    def find(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """Find the longest match of a text's last tokens.

        Where there are several places, the latest of those with the most frequent next token is taken.

        Args:
            token_ids: The text, or its last ``MAX_MATCH`` tokens.

        Returns:
            The place after the match and the length of the match; 0 and 0 if fewer than ``MIN_MATCH`` tokens
            match.
        """
        if not token_ids or token_ids[-1] >= len(self._begins) - 1:
            return 0, 0
        last = token_ids[-1]
        first, end, length = int(self._begins[last]), int(self._begins[last + 1]), 1
        token_at, place_at = self._token_at, self._place_at
        while first < end and length < min(len(token_ids), MAX_MATCH):
            distance = length + 1
            wanted = token_ids[-distance]

            def before(index: int, distance: int = distance) -> int:
                return token_at[place_at[index] - distance]

            low = bisect_left(range(end), wanted, first, key=before)
            high = bisect_right(range(end), wanted, low, key=before)
            if low == high:
                break
            first, end, length = low, high, distance
        if first == end or length < MIN_MATCH:
            return 0, 0
        return self._likeliest(first, end), length

    def _likeliest(self, first: int, end: int) -> int:
        if end - first == 1:
            return self._place_at[first]
        places = self.places[first : end : -(-(end - first) // _NUM_COMPARED)]
        following = self.token_ids[places]
        found, counts = np.unique(following, return_counts=True)
        return int(places[following == found[counts.argmax()]].max())

    def continuation(self, place: int, count: int) -> TokenIds:
        """Return at most ``count`` tokens from a place on, int32 [n], up to the end of their text."""
        if not place:
            return NO_TOKENS
        found = self.token_ids[place : place + count]
        ends = np.flatnonzero(found == _END)
        return found[: ends[0]] if len(ends) else found

    def write(self, path: Path) -> None:
        """Write a file, int32 [2, n]: the tokens, and their index with zeros at its end."""
        index = np.zeros_like(self.token_ids)
        index[: len(self.places)] = self.places
        np.save(path, np.stack((self.token_ids, index)))

    @classmethod
    def read(cls, path: Path, vocab_size: int) -> Corpus:
        """Read a file that ``write`` has written.

        Args:
            path: The file.
            vocab_size: Number of the model's tokens.

        Raises:
            InvalidRequestError: The file cannot be read, or holds something else.
        """
        try:
            with path.open("rb") as file:
                stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.ndarray):
                raise ValueError("an archive of arrays")
            if stored.dtype != np.int32 or stored.ndim != 2 or len(stored) != 2:
                raise ValueError(f"{stored.dtype} {list(stored.shape)}")
            token_ids, places = stored
            places = places[: np.count_nonzero(token_ids != _END)]
            is_padded = len(token_ids) > MAX_MATCH and bool(np.all(token_ids[:MAX_MATCH] == _END))
            if not is_padded or token_ids.min() < _END or token_ids.max() >= vocab_size:
                raise ValueError(f"tokens from {token_ids.min()} to {token_ids.max()}")
            if np.any(places < MAX_MATCH) or np.any(places >= len(token_ids)):
                raise ValueError("an index outside of the texts")
        except Exception as error:  # numpy raises half a dozen kinds for damaged files, some undocumented
            raise InvalidRequestError(
                "the corpus cannot be read",
                values=f"{path}: {error!r:.200}",
                limit=f"tokens below {vocab_size} and their index, as 'draftproof lookup-corpus' writes them",
                remedy="run 'draftproof lookup-corpus' again, or delete the file",
            ) from error
        return cls(token_ids, places)


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
