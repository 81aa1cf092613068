"""Estimates how step times differ from the calibration.

A step may take longer than calibrated because the machine is slow, because of overhead in every step,
because attention costs more, or because its size does. A single step cannot tell these causes apart. A Kalman
filter knows how much each of them varies and how well each is known by now, and divides the error
accordingly: if the machine slows down, all sizes follow; if a size is seen for the first time, it and those
near it are corrected.

Source: Kalman 1960, A new approach to linear filtering and prediction problems.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

SPEED, OVERHEAD, ATTENTION, SIZES = 0, 1, 2, 3
"""Indices into the state; sizes begin at ``SIZES``."""

# Standard deviations before the first step: of logarithms, and of overhead relative to the smallest step.
_PRIOR_SPEED, _PRIOR_OVERHEAD, _PRIOR_ATTENTION = 0.2, 0.3, 0.2
# The same for sizes; if the calibration was disturbed, its errors may be larger.
_PRIOR_SIZE, _PRIOR_ESTIMATED_SIZE = 0.08, 0.4
_ALIKE = 1.0  # Sizes whose logarithms differ by this much have a correlation of 1/e.
_NOISE = 0.06  # standard deviation of the logarithm of a single step's time
# Random walk of the machine's speed per step: a shared one changes by a tenth within some hundred steps.
_SPEED_CHANGE = 0.006
# Overhead may also be less than in the calibration. For a small draft it is several times the step.
_LEAST_OVERHEAD, _MOST_OVERHEAD = -0.5, 5.0
_FORGOTTEN = 1e-4  # share of everything else that is forgotten with each step
# An outlier, such as a moment without CPU, must not count as much as ten steps.
_LARGEST_ERROR, _LARGEST_DEVIATION = 0.5, 2.5


class CostFilter:
    """The estimated differences of an engine's step times from the calibration.

    Attributes:
        state: float64 [3 + sizes], see ``SPEED``: the logarithm of the slowdown of the machine; the overhead
            of each step as a share of the smallest one; logarithms of the slowdown of attention and sizes.

    Args:
        sizes: Calibrated numbers of rows.
        is_estimate: Whether other programs disturbed the calibration.
    """

    def __init__(self, sizes: Sequence[int], *, is_estimate: bool) -> None:
        self.state: Vector = np.zeros(SIZES + len(sizes))
        logs = np.log(sizes)
        alike = np.exp(-np.abs(logs[:, np.newaxis] - logs) / _ALIKE)
        prior = np.zeros((len(self.state), len(self.state)))
        prior[SIZES:, SIZES:] = (_PRIOR_ESTIMATED_SIZE if is_estimate else _PRIOR_SIZE) ** 2 * alike
        prior[range(SIZES), range(SIZES)] = np.square((_PRIOR_SPEED, _PRIOR_OVERHEAD, _PRIOR_ATTENTION))
        self._covariance = prior
        self._kept: Vector = np.full(len(self.state), 1 - _FORGOTTEN)
        self._kept[SPEED] = 1.0
        self._change = prior * (1 - np.outer(self._kept, self._kept))  # keeps what is never seen at the prior
        self._change[SPEED, SPEED] = _SPEED_CHANGE**2

    def observe(self, slopes: Vector, error: float, num_steps: int) -> None:
        """Learn from steps.

        Args:
            slopes: float64 [3 + sizes], derivatives of the logarithm of a step's time by the state.
            error: Logarithm of the ratio of its mean time to the expected one.
            num_steps: Number of steps.
        """
        kept = self._kept**num_steps
        self._covariance = self._covariance * (kept[:, np.newaxis] * kept) + num_steps * self._change
        covariances = self._covariance @ slopes
        variance = float(slopes @ covariances) + _NOISE**2 / num_steps
        limit = min(_LARGEST_ERROR, _LARGEST_DEVIATION * math.sqrt(variance))
        self.state = kept * self.state + covariances / variance * min(max(error, -limit), limit)
        self.state[OVERHEAD] = min(max(self.state[OVERHEAD], _LEAST_OVERHEAD), _MOST_OVERHEAD)
        self._covariance -= covariances[:, np.newaxis] * (covariances / variance)

    def deviation(self, slopes: Vector) -> float:
        """Return the standard deviation of a linear function of the state."""
        return math.sqrt(max(float(slopes @ self._covariance @ slopes), 0.0))
