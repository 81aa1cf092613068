"""Which draft tokens a verification keeps."""

from __future__ import annotations

import numpy as np

from pipelines.speculation.token_ids import TokenIds


def count_accepted(draft_ids: TokenIds, target_ids: TokenIds) -> int:
    """Leading draft tokens that are the target's own.

    With greedy choice, and with noise that draft and target share (``noise.py``), a draft token is
    accepted if and only if it equals the target's token, so the emitted tokens are those of the target
    alone by construction. The same count tells afterwards how many draft tokens an answer contains:
    a recovered token never equals the draft token that it replaces.

    Args:
        draft_ids: int32 [k], proposed tokens.
        target_ids: int32 [n], the target's tokens at the same positions; n may differ from k.

    Returns:
        0 to min(k, n).
    """
    num_compared = min(len(draft_ids), len(target_ids))
    differing = np.flatnonzero(draft_ids[:num_compared] != target_ids[:num_compared])
    return int(differing[0]) if len(differing) else num_compared
