"""Maximum mean discrepancy with a Hamming kernel: do two samples of sequences come from one law?

The kernel counts the positions at which two sequences agree. Its discrepancy is the squared distance
between the token frequencies at each position, summed over positions and prompts: it looks where the
probability is, so it finds a shift between the two likeliest tokens with fewer samples than a chi-square
test that spends its power on every rare one. What it cannot see is a change of the joint law that leaves
the frequencies at each position as they are; ``prefix_test`` sees that.

The p-value is a permutation test's: exact at any sample size, since under equal laws the answers to a
prompt may be dealt out anew to the two models.

Source: Gao, Liang and Guestrin 2024, "Model Equality Testing: Which Model Is This API Serving?",
arXiv 2410.20247 (string kernel with Hamming distance, two-sample test over many prompts); Gretton et al.
2012 for the discrepancy; Phipson and Smyth 2010 for (1 + exceeding) / (1 + permutations).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipelines.validation.prefix_test import SamplePair, TokenSequence

_AT_ONCE = 1000  # permutations in memory


def permutation_p_value(pairs: Sequence[SamplePair], num_permutations: int, seed: int = 0) -> float:
    """Probability of such a discrepancy or a larger one if both models have the same law.

    Args:
        pairs: One for each prompt; both samples hold something.
        num_permutations: The smallest possible p-value is 1 / (1 + this).
        seed: Of the permutations.
    """
    rng = np.random.default_rng(seed)
    features = [_features([*first, *second]) for first, second in pairs]
    sizes = [(len(first), len(second)) for first, second in pairs]
    observed = 0.0
    for rows, (num_first, num_second) in zip(features, sizes, strict=True):
        dealt = np.repeat(np.array([[True, False]]), [num_first, num_second], axis=1)
        observed += float(_discrepancy(rows, dealt)[0])
    num_exceeding = 0
    for start in range(0, num_permutations, _AT_ONCE):
        count = min(_AT_ONCE, num_permutations - start)
        totals = np.zeros(count)
        for rows, (num_first, num_second) in zip(features, sizes, strict=True):
            dealt = np.zeros((count, num_first + num_second), np.bool_)
            dealt[:, :num_first] = True
            totals += _discrepancy(rows, rng.permuted(dealt, axis=1))
        # Equal discrepancies may differ in their last bits; they count as exceeding, to be safe.
        num_exceeding += int(np.sum(totals >= observed * (1 - 1e-5)))
    return (1 + num_exceeding) / (1 + num_permutations)


def _features(sample: Sequence[TokenSequence]) -> npt.NDArray[np.float32]:
    """float32 [answers, pairs of position and token], 1 where the answer has the token there."""
    tokens = np.array(sample)
    columns = []
    for position in range(tokens.shape[1]):
        values, index = np.unique(tokens[:, position], return_inverse=True)
        columns.append(np.eye(len(values), dtype=np.float32)[index])
    return np.concatenate(columns, axis=1)


def _discrepancy(
    features: npt.NDArray[np.float32], in_first: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """float64 [deals]: squared distance between the mean features of both samples, for each deal."""
    num_first = int(in_first[0].sum())
    num_second = len(features) - num_first
    sums = in_first.astype(np.float32) @ features
    difference = sums / num_first - (features.sum(axis=0) - sums) / num_second
    return np.asarray(np.sum(difference.astype(np.float64) ** 2, axis=1))
