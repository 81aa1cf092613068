"""Finds stop words in the bytes of the output, whatever its tokenization."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.text.vocabulary import Vocabulary


class StopWordMatcher:
    """Finds the token of an output that completes a stop word.

    Only output counts: a stop word that begins in the prompt is ignored.

    Args:
        stop_words: Non-empty byte strings.
        vocabulary: Bytes of the tokens.
        output_ids: Earlier output that is continued.
    """

    def __init__(
        self, stop_words: Sequence[bytes], vocabulary: Vocabulary, output_ids: Sequence[int] = ()
    ) -> None:
        self._stop_words = tuple(stop_words)
        self._vocabulary = vocabulary
        self._num_kept = max((len(word) for word in stop_words), default=1) - 1
        self._tail = b""
        for token_id in reversed(output_ids if self._num_kept else ()):
            self._tail = vocabulary.join([token_id]) + self._tail
            if len(self._tail) >= self._num_kept:
                break
        self._tail = self._last_bytes(self._tail)

    def push(self, token_id: int) -> bool:
        """Add one output token; returns True if it completes a stop word."""
        if not self._stop_words:
            return False
        text = self._tail + self._vocabulary.join([token_id])
        self._tail = self._last_bytes(text)
        return any(word in text for word in self._stop_words)

    def _last_bytes(self, text: bytes) -> bytes:
        return text[max(0, len(text) - self._num_kept) :]


def cut_at_stop_word(text: bytes, stop_words: Sequence[bytes]) -> bytes:
    """Return the text before the first stop word; the whole text if there is none."""
    starts = [start for word in stop_words if (start := text.find(word)) >= 0]
    return text[: min(starts)] if starts else text
