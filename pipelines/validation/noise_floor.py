"""Estimate the numerical noise of the target from two runs of it, to judge a candidate's divergences.

If two runs of one model diverge, only the order of additions differed, so their margins show the size of the
noise.

- ``tie_limit``: a divergence is a tie if its margin is at most twice a quantile of the noise margins. The
  quantile is the smallest margin that another one exceeds with probability 1 % at most (rank
  ceil(0.99 (m + 1)) of m), or the largest if there are too few. The largest of m underestimates the noise,
  because another one exceeds it with probability 1 / (m + 1); hence the factor of two. A wrong token is about
  a hundred times further from the target's. Fewer than five noise margins tell no limit: then no divergence
  is a tie.
- ``surprise``: the probability of a margin as large under noise whose margins fall off at least as fast as
  exp(-sqrt(x / scale)). Rounding falls off faster, like a Gaussian; the slower decay allows for prompts whose
  noise differs tenfold. With unknown scale and m observed margins, whose square roots sum to S, the next one
  exceeds x with probability (1 + sqrt(x) / S)^-m: a ratio of exponentials, F-distributed with 2 and 2 m
  degrees of freedom.
- ``LARGEST_ROUNDING``: no rounding has a margin above it, whatever noise was seen. A bfloat16 has 8
  significant bits, so logits up to 32 are apart by at most 1/8; one nat is the sum of eight such steps.
- ``chance_of_more``: Fisher's exact test, one-sided, for a difference that the control never or hardly shows.
- ``rate_difference_bounds``: score interval for the difference of two rates observed on the same prompts.

Sources: Vovk, Gammerman and Shafer 2005 (the rank rule, as in conformal prediction); Tango 1998, Statistics
in Medicine 17, "Equivalence test and confidence interval for the difference in proportions for the
paired-sample design".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import optimize, special, stats

LARGEST_ROUNDING = 1.0
LEAST_MARGINS = 5
_TIE_QUANTILE = 0.99
_TIE_FACTOR = 2.0


def tie_limit(noise_margins: Sequence[float]) -> float | None:
    """Compute the largest margin of a tie, a difference of log probabilities; None if too few are known."""
    if len(noise_margins) < LEAST_MARGINS:
        return None
    rank = math.ceil(_TIE_QUANTILE * (len(noise_margins) + 1))
    return _TIE_FACTOR * sorted(noise_margins)[min(rank, len(noise_margins)) - 1]


def surprise(margin: float, noise_margins: Sequence[float]) -> float:
    """Compute the probability of a margin as large under noise; 1 if no noise was observed."""
    total = sum(math.sqrt(noise_margin) for noise_margin in noise_margins)
    if total == 0:
        return 1.0
    return float((1 + math.sqrt(margin) / total) ** -len(noise_margins))


def chance_of_more(num: int, num_trials: int, num_own: int, num_own_trials: int) -> float:
    """Compute the probability of so many events or more among the trials if both rates are equal.

    Args:
        num: Number of events.
        num_trials: Number of trials.
        num_own: Number of events of the control.
        num_own_trials: Number of its trials.
    """
    table = [[num, num_own], [num_trials - num, num_own_trials - num_own]]
    return float(stats.fisher_exact(table, "greater").pvalue)


def rate_difference_bounds(
    num_first_only: int, num_second_only: int, num_trials: int, confidence: float
) -> tuple[float, float]:
    """Compute bounds of the first rate less the second; each holds with ``confidence``.

    Args:
        num_first_only: Number of trials with the event in the first sample alone.
        num_second_only: Number of trials with the event in the second sample alone.
        num_trials: Number of trials, at least 1.
        confidence: One-sided confidence.
    """
    quantile = float(special.ndtri(confidence))

    def score(difference: float) -> float:
        """Compute Tango's statistic, which falls as the difference grows."""
        a = 2 * num_trials
        b = (
            -num_first_only
            - num_second_only
            + (2 * num_trials - num_first_only + num_second_only) * difference
        )
        c = -num_second_only * difference * (1 - difference)
        second_only = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
        variance = num_trials * (2 * second_only + difference * (1 - difference))
        distance = num_first_only - num_second_only - num_trials * difference
        if variance <= 0:
            return math.copysign(math.inf, distance) if distance else 0.0
        return distance / math.sqrt(variance)

    def bound(level: float) -> float:
        edge = 1 - 1e-12
        if (score(-edge) - level) * (score(edge) - level) >= 0:  # beyond the range of rates
            return -1.0 if level > 0 else 1.0
        return float(optimize.brentq(lambda difference: score(difference) - level, -edge, edge))

    return bound(quantile), bound(-quantile)
