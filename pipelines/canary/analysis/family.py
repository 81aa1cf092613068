"""E-values that are judged together, in any dependence between them.

The mean of e-values is an e-value, so "no loss of these exceeds its limit" is refuted where their mean
reaches 1 / alpha. One loss exceeds its limit if that holds for every group that it belongs to (closed
testing). So some true limit is ever refuted with probability alpha at most; and a loss whose evidence is
k / alpha, which Bonferroni asks of k losses, is always among those found.

Source: Vovk and Wang 2021, "E-values: calibration, combination and applications", Annals of Statistics 49,
arXiv 1912.06116 (the mean dominates every symmetric way to merge; algorithm 1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipelines.canary.analysis.counts import FloatArray


def adjusted(log_evidence: Sequence[float]) -> FloatArray:
    """Evidence adjusted for the family.

    Args:
        log_evidence: [k], natural logarithms of e-values.

    Returns:
        float64 [k]: log of the least mean over the groups that each belongs to. The worst group of a given
        size has the smallest others.
    """
    values = np.asarray(log_evidence, np.float64)
    found = np.empty(len(values))
    for index, value in enumerate(values):
        smallest = np.sort(np.delete(values, index))
        sums = np.logaddexp.accumulate(np.concatenate(([value], smallest)))
        found[index] = np.min(sums - np.log(np.arange(1, len(values) + 1)))
    return found
