"""Adjust e-values for multiple testing, under any dependence between them.

The mean of e-values is an e-value, so "none of these metrics exceeds its limit" is refuted if their mean
reaches 1 / alpha. A metric exceeds its limit if that is refuted for every group that contains it (closed
testing). So the probability of ever refuting a true limit is alpha at most; and a metric whose evidence is
k / alpha, as Bonferroni requires of k metrics, is always detected.

Source: Vovk and Wang 2021, "E-values: calibration, combination and applications", Annals of Statistics 49,
arXiv 1912.06116 (the mean dominates every symmetric way to merge; algorithm 1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipelines.canary.judge.counts import FloatArray


def adjusted(log_evidence: Sequence[float]) -> FloatArray:
    """Adjust evidence for the number of tests.

    Args:
        log_evidence: [k], natural logarithms of e-values.

    Returns:
        float64 [k]: log of the least mean over all groups that contain it. The worst group of a given size
        contains the smallest other values.
    """
    values = np.asarray(log_evidence, np.float64)
    found = np.empty(len(values))
    for index, value in enumerate(values):
        smallest = np.sort(np.delete(values, index))
        sums = np.logaddexp.accumulate(np.concatenate(([value], smallest)))
        found[index] = np.min(sums - np.log(np.arange(1, len(values) + 1)))
    return found
