"""Stop words and bad words as the tensors that TensorRT-LLM takes, such as ``stop_words_list`` INT32 [2, m].

Row 0 holds the token ids of all words one after another; row 1 holds where each word ends in row 0.
Both are padded with -1, so no words at all are [[-1], [-1]]. Source: ``to_word_list_format`` in
TensorRT-LLM, which pads row 0 with 0; that is accepted too.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError
from pipelines.text.vocabulary import Vocabulary

MAX_WORDS = 32  # each is searched for at every token; far above what APIs of the field allow (4 to 16)
MAX_WORD_BYTES = 256

NO_WORDS: npt.NDArray[np.int32] = np.full((2, 1), -1, dtype=np.int32)


class WordKind(Enum):
    """What the words are for; the value is the name of their tensor at the text level."""

    STOP = "stop_words"
    BAD = "bad_words"

    @property
    def text_tensor(self) -> str:
        """Tensor of the words as text."""
        return self.value

    @property
    def list_tensor(self) -> str:
        """Tensor of the words as token ids, at the engines."""
        return f"{self.value}_list"

    @property
    def one(self) -> str:
        """One of them in a sentence."""
        return "stop word" if self is WordKind.STOP else "bad word"

    @property
    def remedy(self) -> str:
        """What to do instead where a word cannot be used."""
        if self is WordKind.STOP:
            return "leave it out of stop_words; to end at a special token send its id as end_id"
        return "leave it out of bad_words; against a special token send its id in logit_bias_ids"


def pack_words(words: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    """Token ids of each word, none of them empty, to the tensor int32 [2, m]."""
    if not words:
        return NO_WORDS
    ids = [token_id for word in words for token_id in word]
    matrix = np.full((2, len(ids)), -1, dtype=np.int32)
    matrix[0] = ids
    matrix[1, : len(words)] = np.cumsum([len(word) for word in words])
    return matrix


def unpack_words(matrix: npt.NDArray[np.int32], vocabulary: Vocabulary, kind: WordKind) -> tuple[bytes, ...]:
    """The tensor int32 [2, m] to the bytes of each word.

    Raises:
        InvalidRequestError: The shape or the offsets are none of the form above, or a word is empty,
            too long, or one too many.
    """
    if matrix.ndim != 2 or matrix.shape[0] != 2:
        raise _malformed(kind, f"shape {list(matrix.shape)}", "shape [2, m]: ids, then end offsets")
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
    """Refuse words that cannot be searched for.

    Raises:
        InvalidRequestError: A word is empty or too long, or there are too many.
    """
    if len(words) > MAX_WORDS:
        raise InvalidRequestError(
            f"there are too many {kind.one}s",
            values=f"{len(words)} {kind.one}s",
            limit=f"at most {MAX_WORDS}",
            remedy=f"send fewer {kind.text_tensor}",
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
        values=values,
        limit=limit,
        remedy="send [[-1], [-1]] for none, or leave the tensor out",
    )
