"""A language model over letters, whose logits depend in their last digits on the kernel that is used."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

END_ID = 0
BEGIN_ID = 1
_LETTERS = "abcdefghijklmnopqrstuvwxyz .,:;\n"
VOCAB_SIZE = 2 + len(_LETTERS)
_NOISE = 0.003  # of the logits, as between two kernels
_NOISE_OF_THE_DRAFT = 0.7


def encode(text: str) -> list[int]:
    """Return token ids, with the token that begins every text."""
    return [BEGIN_ID, *(2 + _LETTERS.index(letter) for letter in text)]


def decode(token_ids: list[int]) -> str:
    return "".join(_LETTERS[token - 2] for token in token_ids if token >= 2)


@functools.lru_cache(maxsize=100_000)
def _drawn(key: tuple[int, ...]) -> npt.NDArray[np.float64]:
    return np.random.default_rng(key).normal(size=VOCAB_SIZE)


def logits_after(
    token_ids: list[int], kernel: int, *, is_draft: bool, is_verification: bool
) -> npt.NDArray[np.float32]:
    """Return float32 [VOCAB_SIZE]: logits by the last three tokens, rounded as one kernel would."""
    context = tuple(token_ids[-3:])
    logits = 2 * _drawn((7, *context))
    logits[BEGIN_ID] = logits[END_ID] = -20.0 if len(token_ids) < 30 else -2.0
    if is_draft:
        logits = logits + _NOISE_OF_THE_DRAFT * _drawn((8, *context))
    noise = _drawn((9, 1000 + kernel if is_verification else kernel, *token_ids[-8:]))
    logits = logits + _NOISE * noise
    return logits.astype(np.float32)
