"""Stop words and bad words, matched as bytes: their limits, and where a stop word ends an output."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from pipelines.errors import InvalidRequestError
from pipelines.text.vocabulary import Vocabulary

MAX_WORDS = 32  # other APIs allow 4 to 16
MAX_WORD_BYTES = 256


class WordKind(Enum):
    """Purpose of words; the value is the name of their field."""

    STOP = "stop_words"
    BAD = "bad_words"

    @property
    def one(self) -> str:
        """Name of one word for messages."""
        return "stop word" if self is WordKind.STOP else "bad word"

    @property
    def remedy(self) -> str:
        """Remedy for a word that cannot be used."""
        if self is WordKind.STOP:
            return "leave it out of stop_words; to end at a special token send its id as end_id"
        return "leave it out of bad_words; to forbid a special token send its id in logit_bias_ids"


def check_words(words: Sequence[bytes], kind: WordKind) -> None:
    """Refuse words that cannot be matched.

    Raises:
        InvalidRequestError: A word is empty or too long, or there are too many.
    """
    if len(words) > MAX_WORDS:
        raise InvalidRequestError(
            f"there are too many {kind.one}s: {len(words)}, more than {MAX_WORDS}", f"send fewer {kind.value}"
        )
    for word in words:
        if not 1 <= len(word) <= MAX_WORD_BYTES:
            raise InvalidRequestError(
                f"a {kind.one} is empty or too long: {len(word)} bytes of text in {word[:20]!r}, not 1 to "
                f"{MAX_WORD_BYTES}; special tokens spell none",
                kind.remedy,
            )


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
