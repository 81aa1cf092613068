"""Limits stop words and bad words, which are matched as bytes at every token."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from pipelines.errors import InvalidRequestError

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
