"""Anytime-valid evidence about the rate of an event from its count.

To refute "the rate is at most p", the likelihood ratio of all rates above p to p is averaged with the weights
of Jeffreys' prior. If the rate is p or less, no such ratio grows on average, so the average ever reaches
1 / alpha with probability alpha at most. It has a closed form that depends on the count alone.

Sources: Robbins 1970, "Statistical methods related to the law of the iterated logarithm" (mixtures of
likelihood ratios); Howard, Ramdas, McAuliffe and Sekhon 2021, "Time-uniform, nonparametric, nonasymptotic
confidence sequences", Annals of Statistics 49, arXiv 1810.08240 (beta-binomial mixture, one- and two-sided);
Lindon and Malek 2022, arXiv 2011.03567, for counts in A/B tests.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import special

FloatArray = npt.NDArray[np.float64]
Side = Literal["above", "below"]

_PRIOR = 0.5  # both parameters of Jeffreys' beta prior


def log_evidence(side: Side, num_events: npt.ArrayLike, num_trials: npt.ArrayLike, rate: float) -> FloatArray:
    """Compute the log evidence that the true rate lies on one side of ``rate``.

    Args:
        side: "above" refutes "at most ``rate``", "below" refutes "at least ``rate``".
        num_events: Number of events, 0 to ``num_trials``; fractions are allowed to extrapolate a sample.
        num_trials: Number of trials, broadcast with ``num_events``.
        rate: Rate between 0 and 1, exclusive.
    """
    events = np.asarray(num_events, np.float64)
    others = np.asarray(num_trials, np.float64) - events
    with np.errstate(divide="ignore"):  # log 0 stands for no evidence
        seen = np.log(_share(side, events + _PRIOR, others + _PRIOR, rate))
    seen += special.betaln(events + _PRIOR, others + _PRIOR)
    before = np.log(_share(side, _PRIOR, _PRIOR, rate)) + special.betaln(_PRIOR, _PRIOR)
    evidence: FloatArray = seen - before - events * np.log(rate) - others * np.log1p(-rate)
    return evidence


def _share(side: Side, a: npt.ArrayLike, b: npt.ArrayLike, rate: float) -> Any:
    """Integrate a beta distribution on one side of ``rate``; ``betaincc`` would be ten times slower."""
    return special.betainc(b, a, 1 - rate) if side == "above" else special.betainc(a, b, rate)
