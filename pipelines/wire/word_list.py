"""Converts stop words and bad words to and from TensorRT-LLM's tensors, such as ``stop_words_list``.

The tensor is INT32 [2, m]. Row 0 holds the token ids of all words one after another; row 1 holds the offset
in row 0 at which each word ends. Both are padded with -1, so an empty list is [[-1], [-1]]. TensorRT-LLM's
``to_word_list_format`` pads row 0 with 0, which is accepted too.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError
from pipelines.text.vocabulary import Vocabulary

MAX_WORDS = 32  # every word is matched at every token; other APIs allow 4 to 16
MAX_WORD_BYTES = 256

_MAX_COLUMNS = MAX_WORDS * MAX_WORD_BYTES

NO_WORDS: npt.NDArray[np.int32] = np.full((2, 1), -1, dtype=np.int32)


class WordKind(Enum):
    """Purpose of a word list; the value is the name of its tensor at the text models."""

    STOP = "stop_words"
    BAD = "bad_words"

    @property
    def list_tensor(self) -> str:
        """Name of the tensor with the words as token ids."""
        return f"{self.value}_list"

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


def pack_words(words: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    """Pack the token ids of non-empty words into the tensor int32 [2, m]."""
    if not words:
        return NO_WORDS
    ids = [token_id for word in words for token_id in word]
    matrix = np.full((2, len(ids)), -1, dtype=np.int32)
    matrix[0] = ids
    matrix[1, : len(words)] = np.cumsum([len(word) for word in words])
    return matrix


def unpack_words(matrix: npt.NDArray[np.int32], vocabulary: Vocabulary, kind: WordKind) -> tuple[bytes, ...]:
    """Unpack the tensor int32 [2, m] into the bytes of each word.

    Raises:
        InvalidRequestError: The tensor is malformed, a word is empty or too long, or there are too many.
    """
    if matrix.ndim != 2 or matrix.shape[0] != 2:
        raise _malformed(kind, f"shape {list(matrix.shape)}", "shape [2, m]: ids, then end offsets")
    if matrix.shape[1] > _MAX_COLUMNS:
        raise _malformed(kind, f"{matrix.shape[1]} columns", f"at most {_MAX_COLUMNS} ids of all words")
    ids, offsets = matrix
    num_words = int(np.argmax(offsets < 0)) if (offsets < 0).any() else len(offsets)
    ends = [0, *offsets[:num_words].tolist()]
    if (offsets[num_words:] >= 0).any() or ends[-1] > len(ids):
        raise _malformed(kind, f"offsets {offsets.tolist()}", f"offsets up to {len(ids)}, then only -1")
    if any(end <= begin for begin, end in pairwise(ends)):
        raise _malformed(kind, f"offsets {offsets.tolist()}", "each offset greater than the one before")
    words = [ids[begin:end] for begin, end in pairwise(ends)]
    if any((word < 0).any() or (word >= vocabulary.size).any() for word in words):
        raise _malformed(kind, f"ids {ids.tolist()}", f"token ids 0 to {vocabulary.size - 1}")
    texts = tuple(vocabulary.join(word.tolist()) for word in words)
    check_words(texts, kind)
    return texts


def check_words(words: Sequence[bytes], kind: WordKind) -> None:
    """Refuse words that cannot be matched.

    Raises:
        InvalidRequestError: A word is empty or too long, or there are too many.
    """
    if len(words) > MAX_WORDS:
        raise InvalidRequestError(
            f"there are too many {kind.one}s",
            values=f"{len(words)} {kind.one}s",
            limit=f"at most {MAX_WORDS}",
            remedy=f"send fewer {kind.value}",
        )
    for word in words:
        if not 1 <= len(word) <= MAX_WORD_BYTES:
            raise InvalidRequestError(
                f"a {kind.one} is empty or too long",
                values=f"{kind.one} {word[:20]!r} of {len(word)} bytes",
                limit=f"1 to {MAX_WORD_BYTES} bytes of text; special tokens spell none",
                remedy=kind.remedy,
            )


def _malformed(kind: WordKind, values: str, limit: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{kind.list_tensor} is malformed",
        values=f"{values:.200}",
        limit=limit,
        remedy="send [[-1], [-1]] for an empty list, or leave the tensor out",
    )
