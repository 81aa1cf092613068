"""Compare two samples of token sequences position by position, given the tokens before.

The distribution of a sequence is the product of the distributions of its tokens given their prefixes. So for
each prefix that is frequent in both samples, Pearson's test compares the next tokens. The statistics of all
prefixes of a position, over all prompts, are added: given the counts of the prefixes they are independent. A
table of whole sequences would pool most of them as rare; and a fault of one position, such as a bonus token
from the draft, shows in the row of that position.

``upper_bound`` states how far apart the distributions can be, from the inequality of ``chi_square``: with n_i
samples (as there) at prefix i and distributions TV_i apart, the noncentrality is at least
sum(n_i (2 TV_i)^2) >= n (2 mean TV)^2, where n is the sum of n_i and the mean is weighted by them.

A second test compares all positions together, by the maximum mean discrepancy with a Hamming kernel. The
kernel counts the positions at which two sequences agree. Its discrepancy is the squared distance between the
token frequencies at each position, summed over positions and prompts. It weights tokens by their
probability, so it detects a shift between the two likeliest tokens with fewer samples than a chi-square
test, which spends power on every rare token. It cannot detect a change of the joint distribution that keeps
the frequencies at each position; ``compare_positions`` detects that.

The p-value comes from a permutation test, which is exact at any sample size: under equal distributions the
answers to a prompt can be reassigned to the two models.

Source: Gao, Liang and Guestrin 2024, "Model Equality Testing: Which Model Is This API Serving?",
arXiv 2410.20247 (string kernel with Hamming distance, two-sample test over many prompts); Gretton et al.
2012 for the discrepancy; Phipson and Smyth 2010 for (1 + exceeding) / (1 + permutations).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from pipelines.validation.distribution.chi_square import CellTest, compare_samples, noncentrality_needed

TokenSequence = tuple[int, ...]
SamplePair = tuple[Sequence[TokenSequence], Sequence[TokenSequence]]
"""Answers to one prompt from the two models. All sequences of all pairs have the same length."""


@dataclass(frozen=True)
class PositionTest:
    """Test of one position over all prefixes and prompts.

    Attributes:
        position: Position of the token, from 1.
        statistic: Sum over the prefixes; chi-square with ``dof`` if the distributions are equal.
        dof: Degrees of freedom; 0 if nothing could be tested.
        num_samples: Number of samples of the tested prefixes, as in ``CellTest``.
        num_prefixes: Number of tested prefixes.
        share_tested: Share of all answers with a tested prefix.
        merged_probability: Probability of the rare tokens that were merged into one cell, as a mean over
            tested prefixes.
    """

    position: int
    statistic: float
    dof: int
    num_samples: float
    num_prefixes: int
    share_tested: float
    merged_probability: float

    @property
    def p_value(self) -> float:
        """Probability of this difference or a larger one between samples of one distribution."""
        return float(special.chdtrc(self.dof, self.statistic)) if self.dof else 1.0

    def upper_bound(self, confidence: float) -> float:
        """Compute an upper bound of the total variation of the next token.

        It bounds the mean over the tested prefixes, between the cells of the test. Samples that agree better
        than the average of equal distributions do not lower it, because that is luck. 1 without a test.
        """
        if not self.dof:
            return 1.0
        statistic = max(self.statistic, self.dof)
        noncentrality = float(special.chndtrinc(statistic, self.dof, 1.0 - confidence))
        return min(1.0, 0.5 * math.sqrt(noncentrality / self.num_samples))

    def growth_needed(self, limit: float, confidence: float, probability: float) -> float:
        """Compute the factor of more answers that brings ``upper_bound`` below ``limit``.

        Args:
            limit: Total variation.
            confidence: Confidence of the bound.
            probability: Probability of success if the distributions are equal.
        """
        if not self.dof:
            return math.inf
        needed = noncentrality_needed(self.dof, 1.0 - probability, confidence) / (2 * limit) ** 2
        return needed / self.num_samples


def compare_positions(pairs: Sequence[SamplePair]) -> tuple[PositionTest, ...]:
    """Compare the answers of two models to the same prompts.

    Args:
        pairs: One pair of non-empty samples for each prompt.

    Returns:
        One test for each position.
    """
    length = len(pairs[0][0][0])
    num_answers = sum(len(first) + len(second) for first, second in pairs)
    return tuple(_compare_position(pairs, position, num_answers) for position in range(length))


def _compare_position(pairs: Sequence[SamplePair], position: int, num_answers: int) -> PositionTest:
    tested: list[tuple[CellTest, int]] = []
    for first, second in pairs:
        first_counts, second_counts = _next_tokens(first, position), _next_tokens(second, position)
        for prefix in first_counts.keys() & second_counts.keys():
            test, size = _compare_prefix(first_counts[prefix], second_counts[prefix])
            if test.dof:
                tested.append((test, size))
    num_samples = sum(test.num_samples for test, _ in tested)
    merged = sum(test.pooled_probability * test.num_samples for test, _ in tested)
    return PositionTest(
        position=position + 1,
        statistic=sum(test.statistic for test, _ in tested),
        dof=sum(test.dof for test, _ in tested),
        num_samples=num_samples,
        num_prefixes=len(tested),
        share_tested=sum(size for _, size in tested) / num_answers,
        merged_probability=merged / num_samples if tested else 0.0,
    )


def _next_tokens(sample: Sequence[TokenSequence], position: int) -> dict[TokenSequence, Counter[int]]:
    """Count, for each prefix of ``position`` tokens, the tokens that follow it."""
    counts: defaultdict[TokenSequence, Counter[int]] = defaultdict(Counter)
    for sequence in sample:
        counts[sequence[:position]][sequence[position]] += 1
    return counts


def _compare_prefix(first: Counter[int], second: Counter[int]) -> tuple[CellTest, int]:
    """Return the test and its number of answers."""
    tokens = sorted(first.keys() | second.keys())
    ours, theirs = (np.array([sample[token] for token in tokens], np.int64) for sample in (first, second))
    return compare_samples(ours, theirs), int((ours + theirs).sum())


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
