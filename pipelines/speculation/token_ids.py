"""Defines types for arrays of tokens and logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]
"""int32 [n]."""

Logits = npt.NDArray[np.float32]
"""float32 [vocab_size] or [n, vocab_size], raw logits of an engine."""

Scores = npt.NDArray[np.float64]
"""float64 [vocab_size]: processed logits; -inf where a token cannot be chosen."""

NO_TOKENS: TokenIds = np.empty(0, dtype=np.int32)
NO_TOKENS.setflags(write=False)


def count_accepted(draft_ids: TokenIds, target_ids: TokenIds) -> int:
    """Count the leading draft tokens that equal the target's tokens.

    With greedy decoding, and with noise that draft and target share (``noise.py``), a draft token is accepted
    if and only if it equals the target's token, so the output is that of the target alone by construction.
    The same count tells afterwards how many draft tokens an answer contains, because a recovered token never
    equals the draft token that it replaces.

    Args:
        draft_ids: int32 [k], proposed tokens.
        target_ids: int32 [n], the target's tokens at the same positions; n may differ from k.

    Returns:
        0 to min(k, n).
    """
    # Both are short, so lists are faster than arrays.
    pairs = zip(draft_ids.tolist(), target_ids[: len(draft_ids)].tolist(), strict=False)
    num_accepted = 0
    for draft_id, target_id in pairs:
        if draft_id != target_id:
            break
        num_accepted += 1
    return num_accepted
