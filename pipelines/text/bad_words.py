"""Bad words, kept out of the bytes of the output and so out of any tokenization of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from pipelines.text.vocabulary import Vocabulary

_NUM_REMEMBERED = 4096  # stretches of bad words; a round of a request must not search the vocabulary anew


class Completions:
    """Which tokens of a vocabulary complete a word of which some bytes stand already.

    Args:
        vocabulary: Bytes of the tokens.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._by_bytes = sorted(range(vocabulary.size), key=vocabulary.bytes_of.__getitem__)
        self._sorted = [vocabulary.bytes_of[token_id] for token_id in self._by_bytes]
        self.containing = lru_cache(_NUM_REMEMBERED)(self._containing)
        self.starting_with = lru_cache(_NUM_REMEMBERED)(self._starting_with)

    def _containing(self, word: bytes) -> npt.NDArray[np.int32]:
        ids = [token_id for token_id, text in enumerate(self.vocabulary.bytes_of) if word in text]
        return np.array(ids, np.int32)

    def _starting_with(self, rest: bytes) -> npt.NDArray[np.int32]:
        begin = bisect_left(self._sorted, rest)
        end = begin
        while end < len(self._sorted) and self._sorted[end].startswith(rest):
            end += 1
        return np.array(self._by_bytes[begin:end], np.int32)


class BadWords:
    """Watches one output for the tokens that would complete a bad word.

    Only output counts: a bad word may begin in the prompt. A token that spells nothing is never banned.

    Args:
        words: Non-empty byte strings.
        completions: Of the vocabulary.
        output_ids: Output tokens so far, when an output is continued.
    """

    def __init__(
        self, words: Sequence[bytes], completions: Completions, output_ids: Sequence[int] = ()
    ) -> None:
        self._words = tuple(words)
        self._completions = completions
        self._num_kept = max(map(len, self._words)) - 1
        self._tail = b""
        for token_id in reversed(output_ids):
            if len(self._tail) >= self._num_kept:
                break
            self._tail = completions.vocabulary.join([token_id]) + self._tail
        self._tail = self._last_bytes(self._tail)

    def banned_ids(self) -> npt.NDArray[np.int32]:
        """int32 [n], the tokens that cannot come next; an id may stand twice."""
        found = [self._completions.containing(word) for word in self._words]
        for word in self._words:
            for num_there in range(1, min(len(word), len(self._tail) + 1)):
                if self._tail.endswith(word[:num_there]):
                    found.append(self._completions.starting_with(word[num_there:]))
        return np.concatenate(found)

    def push(self, token_id: int) -> None:
        """Add one output token."""
        self._tail = self._last_bytes(self._tail + self._completions.vocabulary.join([token_id]))

    def _last_bytes(self, text: bytes) -> bytes:
        return text[max(0, len(text) - self._num_kept) :]
