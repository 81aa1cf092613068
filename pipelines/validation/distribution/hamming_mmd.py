"""Test with the maximum mean discrepancy and a Hamming kernel whether two samples have one distribution.

The kernel counts the positions at which two sequences agree. Its discrepancy is the squared distance between
the token frequencies at each position, summed over positions and prompts. It weights tokens by their
probability, so it detects a shift between the two likeliest tokens with fewer samples than a chi-square test,
which spends power on every rare token. It cannot detect a change of the joint distribution that keeps the
frequencies at each position; ``prefix_test`` detects that.

The p-value comes from a permutation test, which is exact at any sample size: under equal distributions the
answers to a prompt can be reassigned to the two models.

Source: Gao, Liang and Guestrin 2024, "Model Equality Testing: Which Model Is This API Serving?",
arXiv 2410.20247 (string kernel with Hamming distance, two-sample test over many prompts); Gretton et al.
2012 for the discrepancy; Phipson and Smyth 2010 for (1 + exceeding) / (1 + permutations).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipelines.validation.distribution.prefix_test import SamplePair, TokenSequence

_CHUNK = 1000  # permutations in memory


def permutation_p_value(pairs: Sequence[SamplePair], num_permutations: int, seed: int = 0) -> float:
    """Compute the probability of this discrepancy or a larger one if both distributions are equal.

    Args:
        pairs: One pair of non-empty samples for each prompt.
        num_permutations: Number of permutations; the smallest possible p-value is 1 / (1 + this).
        seed: Seed of the permutations.
    """
    rng = np.random.default_rng(seed)
    features = [_features([*first, *second]) for first, second in pairs]
    sizes = [(len(first), len(second)) for first, second in pairs]
    observed = 0.0
    for rows, (num_first, num_second) in zip(features, sizes, strict=True):
        assigned = np.repeat(np.array([[True, False]]), [num_first, num_second], axis=1)
        observed += float(_discrepancy(rows, assigned)[0])
    num_exceeding = 0
    for start in range(0, num_permutations, _CHUNK):
        count = min(_CHUNK, num_permutations - start)
        totals = np.zeros(count)
        for rows, (num_first, num_second) in zip(features, sizes, strict=True):
            assigned = np.zeros((count, num_first + num_second), np.bool_)
            assigned[:, :num_first] = True
            totals += _discrepancy(rows, rng.permuted(assigned, axis=1))
        # Equal discrepancies may differ in their last bits; counting them as exceeding is conservative.
        num_exceeding += int(np.sum(totals >= observed * (1 - 1e-5)))
    return (1 + num_exceeding) / (1 + num_permutations)


def _features(sample: Sequence[TokenSequence]) -> npt.NDArray[np.float32]:
    """Encode which token each answer has at each position: float32 [answers, positions x tokens]."""
    tokens = np.array(sample)
    columns = []
    for position in range(tokens.shape[1]):
        values, index = np.unique(tokens[:, position], return_inverse=True)
        columns.append(np.eye(len(values), dtype=np.float32)[index])
    return np.concatenate(columns, axis=1)


def _discrepancy(
    features: npt.NDArray[np.float32], in_first: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Compute the squared distance between the mean features of both samples: float64 [permutations]."""
    num_first = int(in_first[0].sum())
    num_second = len(features) - num_first
    sums = in_first.astype(np.float32) @ features
    difference = sums / num_first - (features.sum(axis=0) - sums) / num_second
    return np.asarray(np.sum(difference.astype(np.float64) ** 2, axis=1))
