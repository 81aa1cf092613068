"""Where a stream of tokens may be cut so that each chunk can be turned into text on its own.

A chunk never ends inside a UTF-8 character, nor where the output may still turn out to have begun a
stop word. Then the texts of the chunks, decoded one by one, join to the text of the whole, and a stop
word lies inside one chunk, where it can be cut off without looking at any other.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from pipelines.text.vocabulary import Vocabulary


class ChunkBoundary:
    """Holds the latest output tokens back until they end at a boundary.

    Args:
        vocabulary: Bytes of the tokens.
        stop_words: Non-empty byte strings.
        min_tokens: Output tokens at the beginning in which no stop word can begin.
    """

    def __init__(self, vocabulary: Vocabulary, stop_words: Sequence[bytes] = (), min_tokens: int = 0) -> None:
        self._vocabulary = vocabulary
        self._stop_words = tuple(stop_words)
        self._min_tokens = min_tokens
        self._held: list[int] = []
        self._num_released = 0

    def release(self, token_ids: Sequence[int], *, is_final: bool) -> list[int]:
        """Add output tokens and take those that may be sent now.

        Args:
            token_ids: The next output tokens.
            is_final: The output ends here: everything is released.

        Returns:
            The longest run of held tokens that ends at a boundary; it may be empty.
        """
        self._held.extend(token_ids)
        num_released = len(self._held) if is_final else self._num_releasable()
        released, self._held = self._held[:num_released], self._held[num_released:]
        self._num_released += num_released
        return released

    def _num_releasable(self) -> int:
        num_before = max(0, self._min_tokens - self._num_released)
        for count in range(len(self._held), 0, -1):
            text = self._vocabulary.join(self._held[:count])
            with_stop_words = self._vocabulary.join(self._held[num_before:count])
            if _ends_at_character(text) and not self._may_begin_stop_word(with_stop_words):
                return count
        return 0

    def _may_begin_stop_word(self, text: bytes) -> bool:
        return any(
            text.endswith(word[:length])
            for word in self._stop_words
            for length in range(1, min(len(word), len(text) + 1))
        )


def decode_chunk(text: bytes) -> str:
    """Text of one chunk; bytes that are no UTF-8 become U+FFFD, as they would in the whole."""
    return text.decode("utf-8", errors="replace")


def _ends_at_character(text: bytes) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(text)
    return not decoder.getstate()[0]
