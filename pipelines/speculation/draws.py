"""The random choices there are: a token by its weight, and the coin of the ratio rule.

Everything else in this package is determined by the logits and these, so tests put an enumeration of
all outcomes in their place (``tests/exact``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.speculation.noise import NoiseStream, gumbel, uniform, words_at
from pipelines.speculation.token_ids import Scores

# The logarithm may be off by a last bit, and so not be quite monotonic.
_LOG_SLACK = 1e-9

MAX_MARGIN = 6.0
"""Beyond so many nats a margin tells nothing more."""


def draw_token(scores: Scores, seed: int, stream: NoiseStream, position: int) -> int:
    """Choose token i with probability proportional to exp(scores[i]).

    It is argmax(scores + g), g being the position's Gumbel noise, of equal sums the lower id: two models
    that draw from one stream at one position choose the same token wherever they agree on it.

    Source: the Gumbel-max trick; shared noise: drafter-invariant speculative decoding, arXiv:2408.07978.

    Args:
        scores: float64 [vocab_size], at least one finite, none NaN or +inf.
        seed: Of the request.
        stream: Noise to draw with.
        position: Absolute position of the token that is chosen.
    """
    candidates, sums = _contenders(scores, seed, stream, position, within=0.0)
    return int(candidates[np.argmax(sums)])


def draw_with_margin(scores: Scores, seed: int, stream: NoiseStream, position: int) -> tuple[int, float]:
    """``draw_token`` and its margin.

    Returns:
        The token, and by how much its sum of score and noise exceeds the next best, ``MAX_MARGIN`` at
        most.
    """
    candidates, sums = _contenders(scores, seed, stream, position, within=MAX_MARGIN)
    return int(candidates[np.argmax(sums)]), margin_of(sums)


def margin_of(scores: npt.NDArray[np.floating[Any]]) -> float:
    """Gap between the largest and the second largest score, ``MAX_MARGIN`` at most."""
    if len(scores) < 2:
        return MAX_MARGIN
    others = scores.copy()
    best = int(np.argmax(others))
    others[best] = -np.inf
    return min(float(scores[best] - others.max()), MAX_MARGIN)


def _contenders(
    scores: Scores, seed: int, stream: NoiseStream, position: int, within: float
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """Tokens whose score and noise may come ``within`` so much of the largest sum, and these sums.

    Only where the score alone, with the largest noise there is, could do so is noise made of the bits.
    """
    words = words_at(seed, stream, position, len(scores))
    likeliest, luckiest = int(np.argmax(scores)), int(np.argmax(words))
    noise = gumbel(words[[likeliest, luckiest]])
    best = max(scores[likeliest] + noise[0], scores[luckiest] + noise[1])
    candidates = np.flatnonzero(scores + (noise[1] + _LOG_SLACK + within) >= best)
    return candidates, scores[candidates] + gumbel(words[candidates])


def draw_weighted(weights: npt.NDArray[np.float64], seed: int, stream: NoiseStream, position: int) -> int:
    """``draw_token`` from weights float64 [vocab_size], none negative, at least one positive."""
    with np.errstate(divide="ignore"):
        return draw_token(np.log(weights), seed, stream, position)


def is_accepted(p: float, q: float, seed: int, position: int) -> bool:
    """Whether the ratio rule keeps a draft token, which it does with probability min(1, p / q).

    Args:
        p: Probability that the target gives the draft token.
        q: Probability with which the draft drew it, above 0.
        seed: Of the request.
        position: Absolute position of the token.
    """
    coin = float(uniform(words_at(seed, NoiseStream.ACCEPTANCE, position, 1))[0])
    return coin * q < p


def law(scores: Scores) -> npt.NDArray[np.float64]:
    """Probabilities float64 [vocab_size] of ``draw_token``'s outcomes."""
    weights: npt.NDArray[np.float64] = np.exp(scores - scores.max())
    probabilities: npt.NDArray[np.float64] = weights / weights.sum()
    return probabilities
