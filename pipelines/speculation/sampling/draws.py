"""Makes the random choices: a token by its weight, and the acceptance of the ratio rule.

Everything else in this package is deterministic, so tests can replace these functions by an enumeration of
all outcomes (``tests/exact``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.speculation.sampling.noise import NoiseStream, gumbel, uniform, words_at
from pipelines.speculation.token_ids import Scores

# The logarithm may be wrong in the last bit and therefore not quite monotonic.
_LOG_SLACK = 1e-9

MAX_GAP = 6.0
"""Larger gaps, in nats, carry no more information."""


def draw_token(scores: Scores, seed: int, stream: NoiseStream, position: int) -> int:
    """Choose token i with probability proportional to exp(scores[i]).

    The token is argmax(scores + g) with the position's Gumbel noise g, ties by lower id. So two models that
    draw from the same stream at the same position choose the same token if they agree on it.

    Source: the Gumbel-max trick; shared noise: drafter-invariant speculative decoding, arXiv:2408.07978.

    Args:
        scores: float64 [vocab_size], at least one finite, none NaN or +inf.
        seed: Seed of the request.
        stream: Stream of the noise.
        position: Absolute position of the token.
    """
    candidates, sums = _contenders(scores, seed, stream, position, within=0.0)
    return int(candidates[np.argmax(sums)])


def draw_with_gap(scores: Scores, seed: int, stream: NoiseStream, position: int) -> tuple[int, float]:
    """Choose a token as ``draw_token`` does, and return its gap too.

    Returns:
        The token, and the lead of its score plus noise over the next best, at most ``MAX_GAP``.
    """
    candidates, sums = _contenders(scores, seed, stream, position, within=MAX_GAP)
    return int(candidates[np.argmax(sums)]), gap_of(sums)


def gap_of(scores: npt.NDArray[np.floating[Any]]) -> float:
    """Return the gap between the largest and the second largest score, at most ``MAX_GAP``."""
    if len(scores) < 2:
        return MAX_GAP
    best = int(np.argmax(scores))
    second = max(scores[:best].max(initial=-np.inf), scores[best + 1 :].max(initial=-np.inf))
    return min(float(scores[best] - second), MAX_GAP)


def _contenders(
    scores: Scores, seed: int, stream: NoiseStream, position: int, within: float
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """Return the tokens whose score plus noise may be within a distance of the largest sum, and these sums.

    Noise is computed only for tokens whose score could get there with the largest noise of the position.
    """
    words = words_at(seed, stream, position, len(scores))
    likeliest, luckiest = int(np.argmax(scores)), int(np.argmax(words))
    noise = gumbel(words[[likeliest, luckiest]])
    best = max(scores[likeliest] + noise[0], scores[luckiest] + noise[1])
    candidates = np.flatnonzero(scores + (noise[1] + _LOG_SLACK + within) >= best)
    return candidates, scores[candidates] + gumbel(words[candidates])


def draw_weighted(weights: npt.NDArray[np.float64], seed: int, stream: NoiseStream, position: int) -> int:
    """Choose a token by weights float64 [vocab_size], none negative, at least one positive."""
    with np.errstate(divide="ignore"):
        return draw_token(np.log(weights), seed, stream, position)


def is_accepted(p: float, q: float, seed: int, position: int) -> bool:
    """Decide whether the ratio rule accepts a draft token: with probability min(1, p / q).

    Args:
        p: Probability of the token under the target.
        q: Probability of the token under the draft, above 0.
        seed: Seed of the request.
        position: Absolute position of the token.
    """
    coin = float(uniform(words_at(seed, NoiseStream.ACCEPTANCE, position, 1))[0])
    return coin * q < p


def distribution(scores: Scores) -> npt.NDArray[np.float64]:
    """Return the probabilities of ``draw_token``'s outcomes, float64 [vocab_size]."""
    weights: npt.NDArray[np.float64] = np.exp(scores - scores.max())
    probabilities: npt.NDArray[np.float64] = weights / weights.sum()
    return probabilities
