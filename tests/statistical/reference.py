"""A second implementation of the distribution of sampled tokens: plain loops, no code of the sampler.

The processors are in vLLM's order (bans and bias, repetition, frequency and presence penalty, temperature,
min_p, top_k, top_p). Token i spells the i-th letter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pipelines.speculation.request import GenerationRequest

Law = list[float]


def processed_law(logits: np.ndarray, request: GenerationRequest, output: Sequence[int]) -> Law:
    """Return the probabilities of the token after ``output``."""
    sampling = request.sampling
    scores = [float(logit) for logit in logits]
    for token_id, bias in sampling.logit_bias:
        scores[token_id] += bias
    for token_id in range(len(scores)):
        count = list(output).count(token_id)
        if count or token_id in request.input_ids:
            is_positive = scores[token_id] > 0
            factor = 1 / sampling.repetition_penalty if is_positive else sampling.repetition_penalty
            scores[token_id] *= factor
        scores[token_id] -= sampling.frequency_penalty * count + sampling.presence_penalty * (count > 0)
        if any(_spell([*output, token_id]).endswith(word) for word in request.bad_words):
            scores[token_id] = -math.inf
        if token_id in request.end_ids and len(output) < sampling.min_tokens:
            scores[token_id] = -math.inf
    weights = [math.exp((score - max(scores)) / sampling.temperature) for score in scores]
    weights = [weight if weight >= sampling.min_p else 0.0 for weight in weights]
    ranked = sorted(range(len(weights)), key=lambda token_id: (-weights[token_id], token_id))
    for rank, token_id in enumerate(ranked):
        if sampling.top_k and rank >= sampling.top_k:
            weights[token_id] = 0.0
    total, before = sum(weights), 0.0
    for token_id in ranked:
        weight = weights[token_id]
        if before >= sampling.top_p * total:
            weights[token_id] = 0.0
        before += weight
    return [weight / sum(weights) for weight in weights]


def acceptance_by_ratio(p: Law, q: Law) -> float:
    """Return the probability that the ratio rule keeps a draft token: the sum of min(p, q)."""
    return sum(map(min, p, q))


def acceptance_when_coupled(p: Law, q: Law) -> float:
    """Return the probability that argmax(log p + g) = argmax(log q + g) for one Gumbel noise g.

    Token i wins both with probability 1 / sum_j max(p_j / p_i, q_j / q_i): the exponentials -log(u_j) are
    beaten in both races if they exceed the larger of the two ratios. Source: arXiv:2408.07978.
    """
    return sum(
        1 / sum(max(pj / pi, qj / qi) for pj, qj in zip(p, q, strict=True))
        for pi, qi in zip(p, q, strict=True)
        if pi > 0 and qi > 0
    )


def _spell(output: Sequence[int]) -> bytes:
    return bytes(ord("a") + token_id for token_id in output)
