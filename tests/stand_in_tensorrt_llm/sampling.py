"""Samples as the C++ layers do, one request at a time, with their traps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MASKED = -1e30
TOP_K_MAX = 1024  # samplingTopKKernels.h; larger values are clipped, with a warning in the log


@dataclass(frozen=True)
class Sampling:
    """The sampling parameters of a request; the defaults are those of ``DefaultDecodingParams``."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    end_id: int = -1
    bias: npt.NDArray[np.float32] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()

    def scores(self, logits: npt.NDArray[np.float32], input_ids: Sequence[int], new: Sequence[int]) -> Floats:
        """Apply bias, temperature, penalties, minimum length and bans (penaltyKernels.cu, banWordsLayer.cpp).

        Occurrences in the whole input of the request count; the minimum length counts only what this request
        generated.
        """
        scores = logits.astype(np.float64)
        if self.bias is not None:
            scores += self.bias
        scores = scores / (self.temperature + 1e-6) if self.temperature != 1.0 else scores
        occurrences = np.bincount([*input_ids, *new], minlength=len(scores))
        seen = occurrences > 0
        penalty = self.repetition_penalty
        scores[seen] = np.where(scores[seen] < 0, scores[seen] * penalty, scores[seen] / penalty)
        scores[seen] -= self.presence_penalty
        scores -= self.frequency_penalty * occurrences
        if len(new) < self.min_tokens and self.end_id >= 0:
            scores[self.end_id] = MASKED
        # matched against what this request generated (from reading the source)
        for *before, last in self.bad_words:
            if list(new[len(new) - len(before) :]) == before:
                scores[last] = MASKED
        return scores

    def law(self, scores: Floats) -> Floats:
        """Return the next token's probabilities after top_k and top_p; greedy, one of them is 1."""
        top_k, top_p = min(self.top_k, TOP_K_MAX), self.top_p
        if top_k == 0 and top_p == 0.0:  # regularizeTopKTopP: without either, the choice is greedy
            top_k = 1
        order = np.argsort(-scores, kind="stable")
        if top_k:
            order = order[:top_k]
        weights = softmax(scores[order])
        if 0.0 < top_p < 1.0:
            count = int(np.searchsorted(np.cumsum(weights), top_p)) + 1
            order, weights = order[:count], weights[:count]
        law = np.zeros(len(scores))
        law[order] = weights / weights.sum()
        return law


def softmax(scores: Floats) -> Floats:
    weights: Floats = np.exp(scores - scores.max())
    return weights / weights.sum()


def draw(law: Floats, rng: np.random.Generator) -> int:
    """Draw one token. curand's state starts from the request's seed and advances with each of its draws."""
    return int(min(np.searchsorted(np.cumsum(law), rng.random() * law.sum(), side="right"), len(law) - 1))
