"""Two samples of token sequences compared position by position, each position given all before it.

The law of a sequence is the product of the laws of its tokens given their prefixes. So at each prefix that
both samples hold often enough the next tokens are compared by Pearson's test, and the statistics of all
prefixes of a position, over all prompts, are added: given the counts of the prefixes they are independent.
A table of whole sequences would lose most of them in one cell of rare ones; and a fault of one position,
such as a bonus token from the draft, shows in the row of that position.

``upper_bound`` states how far apart the laws can be, from the same inequality as ``power``: with n_i
samples (as in ``power``) at prefix i and laws TV_i apart, the noncentrality is at least
sum(n_i (2 TV_i)^2) >= n (2 mean TV)^2, n being the sum of n_i and the mean weighted by them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from pipelines.validation.cell_test import MIN_EXPECTED, CellTest, compare_samples
from pipelines.validation.power import noncentrality_needed

TokenSequence = tuple[int, ...]
SamplePair = tuple[Sequence[TokenSequence], Sequence[TokenSequence]]
"""Answers to one prompt from the two models. All sequences of all pairs have the same length."""


@dataclass(frozen=True)
class PositionTest:
    """All prefixes of one position, over all prompts.

    Attributes:
        position: Of the token, from 1.
        statistic: Sum over the prefixes; chi-square with ``dof`` if the laws are equal.
        dof: Degrees of freedom; 0 if nothing could be tested.
        num_samples: As ``power.power`` wants them, of the prefixes tested.
        num_prefixes: Prefixes tested.
        share_tested: Of all answers, those with such a prefix.
        share_certain: Of all answers, those with a prefix that is frequent enough, but whose next token is
            nearly always the same: there is nothing to compare.
        merged_probability: Of the rare tokens that were merged into one cell, mean over tested prefixes.
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
        """Probability of such a difference or a larger one between samples of one law."""
        return float(special.chdtrc(self.dof, self.statistic)) if self.dof else 1.0

    def upper_bound(self, confidence: float) -> float:
        """Total variation that the laws of the next token exceed with at most 1 - ``confidence``.

        It is the mean over the tested prefixes, between the cells of the test. Samples that agree better
        than equal laws do on average are not allowed to lower it: that is luck. 1 without a test.
        """
        if not self.dof:
            return 1.0
        statistic = max(self.statistic, self.dof)
        noncentrality = float(special.chndtrinc(statistic, self.dof, 1.0 - confidence))
        return min(1.0, 0.5 * math.sqrt(noncentrality / self.num_samples))

    def growth_needed(self, limit: float, confidence: float, probability: float) -> float:
        """How many times as many answers bring ``upper_bound`` below ``limit`` if the laws are equal.

        Args:
            limit: Total variation.
            confidence: Of the bound.
            probability: With which it is to succeed.
        """
        if not self.dof:
            return math.inf
        needed = noncentrality_needed(self.dof, 1.0 - probability, confidence) / (2 * limit) ** 2
        return needed / self.num_samples


def compare_positions(pairs: Sequence[SamplePair]) -> tuple[PositionTest, ...]:
    """Compare two models that were asked the same prompts.

    Args:
        pairs: One for each prompt; both samples hold something.

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
    """Prefix of ``position`` tokens -> how often each token follows it."""
    counts: defaultdict[TokenSequence, Counter[int]] = defaultdict(Counter)
    for sequence in sample:
        counts[sequence[:position]][sequence[position]] += 1
    return counts


def _compare_prefix(first: Counter[int], second: Counter[int]) -> tuple[CellTest, int, int]:
    """The test, the number of answers in it, and that of the smaller sample."""
    tokens = sorted(first.keys() | second.keys())
    ours, theirs = (np.array([sample[token] for token in tokens], np.int64) for sample in (first, second))
    return compare_samples(ours, theirs), int((ours + theirs).sum()), int(min(ours.sum(), theirs.sum()))
