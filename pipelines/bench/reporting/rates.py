"""Bounds for the rate of rare events, such as divergences, from n prompts.

Source: Clopper and Pearson 1934, Biometrika 26; Hanley and Lippman-Hand 1983, JAMA 249 ("If nothing goes
wrong, is everything all right?": the rule of three).
"""

from __future__ import annotations

import math

from scipy import special


def upper_bound(num_events: int, num_trials: int, confidence: float = 0.95) -> float:
    """Compute the one-sided Clopper-Pearson upper bound of a rate.

    It is the (confidence)-quantile of Beta(x + 1, n - x). With no event it is 1 - (1 - confidence)^(1/n),
    at 95 % just below 3 / n (the rule of three); with no trial it is 1.

    Args:
        num_events: Number of events x, 0 to ``num_trials``.
        num_trials: Number of independent trials n.
        confidence: Confidence between 0 and 1.
    """
    if num_events == num_trials:
        return 1.0
    return float(special.betaincinv(num_events + 1, num_trials - num_events, confidence))


def lower_bound(num_events: int, num_trials: int, confidence: float = 0.95) -> float:
    """Compute the one-sided Clopper-Pearson lower bound; arguments as in ``upper_bound``."""
    return 1.0 - upper_bound(num_trials - num_events, num_trials, confidence)


def prompts_needed(rate: float, probability: float) -> int:
    """Compute how many prompts show an event of ``rate``, between 0 and 1, with ``probability``."""
    return math.ceil(math.log1p(-probability) / math.log1p(-rate))
