"""Evidence about the rate of an event from its count; it may be looked at after every trial.

To refute "the rate is at most p" the likelihood of what was seen is compared with that under p, for all
rates above p at once: the ratio is averaged over them with the weights of Jeffreys' prior. If the rate is p
or less, no such ratio grows on average, so it ever reaches 1 / alpha with probability alpha at most. The
average has a closed form in the count alone.

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
    """Natural logarithm of the evidence that the rate lies on one side of ``rate``.

    Args:
        side: "above" refutes "at most ``rate``", "below" refutes "at least ``rate``".
        num_events: 0 to ``num_trials``; need not be whole, so that a larger sample can be imagined.
        num_trials: Broadcast with ``num_events``.
        rate: Above 0, below 1.
    """
    events = np.asarray(num_events, np.float64)
    others = np.asarray(num_trials, np.float64) - events
    with np.errstate(divide="ignore"):  # no evidence at all is log 0
        seen = np.log(_share(side, events + _PRIOR, others + _PRIOR, rate))
    seen += special.betaln(events + _PRIOR, others + _PRIOR)
    before = np.log(_share(side, _PRIOR, _PRIOR, rate)) + special.betaln(_PRIOR, _PRIOR)
    evidence: FloatArray = seen - before - events * np.log(rate) - others * np.log1p(-rate)
    return evidence


def _share(side: Side, a: npt.ArrayLike, b: npt.ArrayLike, rate: float) -> Any:
    """Of a beta distribution, on one side of ``rate``; ``betaincc`` takes ten times as long."""
    return special.betainc(b, a, 1 - rate) if side == "above" else special.betainc(a, b, rate)
