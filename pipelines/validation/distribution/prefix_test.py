"""Compare two samples of token sequences position by position, given the tokens before.

The distribution of a sequence is the product of the distributions of its tokens given their prefixes. So for
each prefix that is frequent in both samples, Pearson's test compares the next tokens. The statistics of all
prefixes of a position, over all prompts, are added: given the counts of the prefixes they are independent. A
table of whole sequences would pool most of them as rare; and a fault of one position, such as a bonus token
from the draft, shows in the row of that position.

``upper_bound`` states how far apart the distributions can be, from the same inequality as ``power``: with n_i
samples (as in ``power``) at prefix i and distributions TV_i apart, the noncentrality is at least
sum(n_i (2 TV_i)^2) >= n (2 mean TV)^2, where n is the sum of n_i and the mean is weighted by them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from pipelines.validation.distribution.cell_test import MIN_EXPECTED, CellTest, compare_samples
from pipelines.validation.distribution.power import noncentrality_needed

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
        num_samples: Number of samples of the tested prefixes in the sense of ``power.power``.
        num_prefixes: Number of tested prefixes.
        share_tested: Share of all answers with a tested prefix.
        share_certain: Share of all answers whose prefix is frequent enough, but is nearly always followed by
            the same token, so that there is nothing to compare.
        merged_probability: Probability of the rare tokens that were merged into one cell, as a mean over
            tested prefixes.
    """

    position: int
    statistic: float
    dof: int
    num_samples: float
    num_prefixes: int
    share_tested: float
    share_certain: float
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
    num_certain = 0
    for first, second in pairs:
        first_counts, second_counts = _next_tokens(first, position), _next_tokens(second, position)
        for prefix in first_counts.keys() & second_counts.keys():
            test, size, smaller = _compare_prefix(first_counts[prefix], second_counts[prefix])
            if test.dof:
                tested.append((test, size))
            elif smaller >= 2 * MIN_EXPECTED:  # room for two cells
                num_certain += size
    num_samples = sum(test.num_samples for test, _ in tested)
    merged = sum(test.pooled_probability * test.num_samples for test, _ in tested)
    return PositionTest(
        position=position + 1,
        statistic=sum(test.statistic for test, _ in tested),
        dof=sum(test.dof for test, _ in tested),
        num_samples=num_samples,
        num_prefixes=len(tested),
        share_tested=sum(size for _, size in tested) / num_answers,
        share_certain=num_certain / num_answers,
        merged_probability=merged / num_samples if tested else 0.0,
    )


def _next_tokens(sample: Sequence[TokenSequence], position: int) -> dict[TokenSequence, Counter[int]]:
    """Count, for each prefix of ``position`` tokens, the tokens that follow it."""
    counts: defaultdict[TokenSequence, Counter[int]] = defaultdict(Counter)
    for sequence in sample:
        counts[sequence[:position]][sequence[position]] += 1
    return counts


def _compare_prefix(first: Counter[int], second: Counter[int]) -> tuple[CellTest, int, int]:
    """Return the test, its number of answers, and the size of the smaller sample."""
    tokens = sorted(first.keys() | second.keys())
    ours, theirs = (np.array([sample[token] for token in tokens], np.int64) for sample in (first, second))
    return compare_samples(ours, theirs), int((ours + theirs).sum()), int(min(ours.sum(), theirs.sum()))
