"""Converts stop words and bad words to and from TensorRT-LLM's tensors, such as ``stop_words_list``.

The tensor is INT32 [2, m]. Row 0 holds the token ids of all words one after another; row 1 holds the offset
in row 0 at which each word ends. Both are padded with -1, so an empty list is [[-1], [-1]]. TensorRT-LLM's
``to_word_list_format`` pads row 0 with 0, which is accepted too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError
from pipelines.text.vocabulary import Vocabulary
from pipelines.text.words import MAX_WORD_BYTES, MAX_WORDS, WordKind, check_words

_MAX_COLUMNS = MAX_WORDS * MAX_WORD_BYTES

NO_WORDS: npt.NDArray[np.int32] = np.full((2, 1), -1, dtype=np.int32)


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
        raise _malformed(kind, f"the shape {list(matrix.shape)} is not [2, m]: ids, then end offsets")
    if matrix.shape[1] > _MAX_COLUMNS:
        raise _malformed(kind, f"{matrix.shape[1]} columns are more than {_MAX_COLUMNS} ids of all words")
    ids, offsets = matrix
    num_words = int(np.argmax(offsets < 0)) if (offsets < 0).any() else len(offsets)
    ends = [0, *offsets[:num_words].tolist()]
    if (offsets[num_words:] >= 0).any() or ends[-1] > len(ids):
        raise _malformed(kind, f"offsets may be up to {len(ids)}, then only -1", offsets)
    if any(end <= begin for begin, end in pairwise(ends)):
        raise _malformed(kind, "each offset must be greater than the one before", offsets)
    words = [ids[begin:end] for begin, end in pairwise(ends)]
    if any((word < 0).any() or (word >= vocabulary.size).any() for word in words):
        raise _malformed(kind, f"ids must be from 0 to {vocabulary.size - 1}", ids)
    texts = tuple(vocabulary.join(word.tolist()) for word in words)
    check_words(texts, kind)
    return texts


def _malformed(kind: WordKind, why: str, row: npt.NDArray[np.int32] | None = None) -> InvalidRequestError:
    seen = "" if row is None else f", not {row.tolist()!s:.200}"
    return InvalidRequestError(
        f"{kind.value}_list is malformed: {why}{seen}",
        "send [[-1], [-1]] for an empty list, or leave the tensor out",
    )
