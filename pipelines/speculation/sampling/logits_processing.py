"""Counts tokens of prompt and output for the penalties."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipelines.speculation.sampling.params import SamplingParams
from pipelines.speculation.token_ids import Scores, TokenIds


class TokenCounts:
    """Counts the tokens of one sequence.

    Attributes:
        in_sequence: bool [vocab_size], True for tokens of prompt or output.
        in_output: int64 [vocab_size], occurrences of each token in the output.

    Args:
        prompt_ids: int32 [n], the prompt.
        output_ids: int32 [m], earlier output that is continued.
        vocab_size: Logits per position.
    """

    def __init__(self, prompt_ids: TokenIds, output_ids: TokenIds, vocab_size: int) -> None:
        self.in_output: npt.NDArray[np.int64] = np.bincount(output_ids, minlength=vocab_size)
        self.in_sequence: npt.NDArray[np.bool_] = self.in_output > 0
        self.in_sequence[prompt_ids] = True

    def add(self, token_id: int) -> None:
        """Count one more output token."""
        self.in_output[token_id] += 1
        self.in_sequence[token_id] = True


# Rounding errors in a sum of probabilities must not remove a token from the nucleus prematurely.
_SUM_SLACK = 1e-9


def penalize(scores: Scores, sampling: SamplingParams, counts: TokenCounts) -> None:
    """Apply the three penalties in place.

    Source: repetition penalty: Keskar et al. 2019, CTRL, arXiv:1909.05858, section 4.1, on prompt and output;
    frequency and presence penalty: OpenAI, on the output only.

    Args:
        scores: float64 [vocab_size].
        sampling: Sampling parameters.
        counts: Counts of earlier tokens.
    """
    if sampling.repetition_penalty != 1.0:
        seen = scores[counts.in_sequence]
        penalty = sampling.repetition_penalty
        scores[counts.in_sequence] = np.where(seen > 0, seen / penalty, seen * penalty)
    if sampling.frequency_penalty:
        scores -= sampling.frequency_penalty * counts.in_output
    if sampling.presence_penalty:
        scores -= sampling.presence_penalty * (counts.in_output > 0)


def truncate(scores: Scores, sampling: SamplingParams) -> Scores:
    """Apply temperature, min_p, top_k and top_p.

    Args:
        scores: float64 [vocab_size], at least one finite.
        sampling: Sampling parameters, not greedy.

    Returns:
        float64 [vocab_size], log probabilities up to a constant; -inf for tokens that cannot be chosen.
    """
    scores = scores / sampling.temperature
    if sampling.min_p:
        scores[scores < scores.max() + np.log(sampling.min_p)] = -np.inf
    if 0 < sampling.top_k < len(scores):
        scores = _only(scores, _likeliest(scores, sampling.top_k))
    if sampling.top_p < 1.0:
        scores = _only(scores, _nucleus(scores, sampling.top_p))
    return scores


def _likeliest(scores: Scores, count: int) -> npt.NDArray[np.intp]:
    """Return the ``count`` best tokens; ties for the last places go to lower ids."""
    last = np.partition(scores, -count)[-count]
    better = np.flatnonzero(scores > last)
    tied = np.flatnonzero(scores == last)
    return np.concatenate((better, tied[: count - len(better)]))


def _nucleus(scores: Scores, top_p: float) -> npt.NDArray[np.intp]:
    """Return the fewest tokens, best first, whose probabilities sum to at least ``top_p``."""
    weights = np.exp(scores - scores.max())
    total = weights.sum()
    # Tokens below an even share of 1 - top_p cannot matter: together they weigh less than that.
    candidates = np.flatnonzero(weights >= (1.0 - top_p) * total / len(weights) * (1.0 - _SUM_SLACK))
    ranked = candidates[np.argsort(-scores[candidates], kind="stable")]
    reached = np.searchsorted(np.cumsum(weights[ranked]), top_p * total, side="left")
    return ranked[: int(reached) + 1]


def _only(scores: Scores, kept: npt.NDArray[np.intp]) -> Scores:
    masked = np.full(len(scores), -np.inf)
    masked[kept] = scores[kept]
    return masked
