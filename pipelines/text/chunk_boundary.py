"""Splits a stream of tokens so that each chunk can be decoded to text on its own.

A chunk never ends inside a UTF-8 character or inside a possible stop word. So the decoded chunks join to the
text of the whole output, and a stop word always lies within a single chunk, where it can be cut off.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from pipelines.text.bad_words import WordPrefixes
from pipelines.text.vocabulary import Vocabulary


class ChunkBoundary:
    """Holds output tokens back until they end at a boundary.

    Args:
        vocabulary: Bytes of the tokens.
        stop_words: Non-empty byte strings.
        min_tokens: Number of first output tokens in which no stop word can begin.
    """

    def __init__(self, vocabulary: Vocabulary, stop_words: Sequence[bytes] = (), min_tokens: int = 0) -> None:
        self._vocabulary = vocabulary
        self._prefixes = WordPrefixes(stop_words)
        self._state = 0  # of partially matched stop words
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_before = min_tokens
        self._held: list[int] = []
        self._num_releasable = 0

    def release(self, token_ids: Sequence[int], *, is_final: bool) -> list[int]:
        """Add output tokens and return those that may be sent.

        Args:
            token_ids: The next output tokens.
            is_final: Whether the output ends here, which releases everything.

        Returns:
            The held tokens up to the last boundary; may be empty.
        """
        for token_id in token_ids:
            self._hold(token_id)
        num_released = len(self._held) if is_final else self._num_releasable
        released, self._held = self._held[:num_released], self._held[num_released:]
        self._num_releasable = 0
        return released

    def _hold(self, token_id: int) -> None:
        text = self._vocabulary.join([token_id])
        self._held.append(token_id)
        self._decoder.decode(text)
        if self._num_before:
            self._num_before -= 1
        else:
            self._state = self._prefixes.advance(self._state, text)
        is_at_character = not self._decoder.getstate()[0]
        if is_at_character and not self._state:
            self._num_releasable = len(self._held)


def decode_chunk(text: bytes) -> str:
    """Decode a chunk; invalid UTF-8 becomes U+FFFD, as it would in the whole text."""
    return text.decode("utf-8", errors="replace")
