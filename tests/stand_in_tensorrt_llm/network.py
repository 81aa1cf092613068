"""The networks of target and draft: logits depend on the last three tokens only, and the two nearly agree."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

VOCAB_SIZE = 2048  # of the demo pair's tokenizer, and of the one that tests make up
END_IDS = (0, 1)
_DRAFT_NOISE = 0.35
_ENDS_AFTER = 40  # tokens, in some contexts


@functools.lru_cache(maxsize=50_000)
def _drawn(key: tuple[int, ...]) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng(key)
    return (3 * rng.standard_normal(VOCAB_SIZE)).astype(np.float32)


def logits_after(token_ids: list[int], *, is_draft: bool) -> npt.NDArray[np.float32]:
    """Return raw logits, float32 [VOCAB_SIZE]."""
    context = tuple(token_ids[-3:])
    logits = _drawn((7, *context)).copy()
    logits[list(END_IDS)] = -20.0
    turn, is_between = divmod(sum(context), 16)
    if len(token_ids) > _ENDS_AFTER and not is_between:
        logits[END_IDS[turn % len(END_IDS)]] = 20.0
    if is_draft:
        logits += _DRAFT_NOISE * _drawn((8, *context))
    return logits
