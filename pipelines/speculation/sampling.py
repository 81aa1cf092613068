"""From logits to a token, the same way for draft, verification and plain decoding.

Every decision is made in float64 and ties go to the lower token id, so a token depends on the logits,
the parameters and the position alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipelines.speculation.noise import gumbel_at
from pipelines.speculation.sampling_params import SamplingParams


def choose_token(logits: npt.NDArray[np.float32], sampling: SamplingParams, position: int) -> int:
    """The token at one position.

    Args:
        logits: float32 [vocab_size] of one position.
        sampling: Greedy: the largest logit. Otherwise argmax(log p + g), p being the distribution
            after temperature, top_k and top_p in this order, g the position's Gumbel noise.
        position: Absolute position of the token that is chosen.

    Returns:
        A token id; of several equal candidates the lowest.
    """
    if sampling.is_greedy:
        return int(np.argmax(logits))
    scores = processed_logits(logits, sampling)
    return int(np.argmax(scores + gumbel_at(sampling.seed, position, len(scores))))


def processed_logits(logits: npt.NDArray[np.float32], sampling: SamplingParams) -> npt.NDArray[np.float64]:
    """Logits of the distribution that is sampled from, up to one additive constant.

    Args:
        logits: float32 [vocab_size].
        sampling: Not greedy.

    Returns:
        float64 [vocab_size]; -inf where the token cannot be chosen.
    """
    scores = logits.astype(np.float64) / sampling.temperature
    keep_top_k = 0 < sampling.top_k < len(scores)
    if not keep_top_k and sampling.top_p == 1.0:
        return scores
    by_rank = np.argsort(-scores, kind="stable")
    num_kept = sampling.top_k if keep_top_k else len(scores)
    if sampling.top_p < 1.0:
        best = scores[by_rank[:num_kept]]
        weights = np.exp(best - best[0])
        cumulative = np.cumsum(weights)
        num_kept = 1 + int(np.searchsorted(cumulative, sampling.top_p * cumulative[-1], side="left"))
    kept = by_rank[:num_kept]
    masked = np.full(len(scores), -np.inf)
    masked[kept] = scores[kept]
    return masked
