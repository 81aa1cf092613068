"""Tests that noise is uniform and independent over seeds, positions, words and streams.

Run: pytest tests/statistical -m statistical.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scipy import stats

from pipelines.speculation.sampling.noise import NoiseStream, uniform, words_at
from tests.statistical.goodness_of_fit import samples_needed
from tests.statistical.judge import ALPHA, POWER, TOTAL_VARIATION, Judgement, judge_law

SMALL = 20_000
NUM_BINS = 64
NUM_BINS_OF_EACH = 8
_WORDS = 4

SHARED, DRAFT, ACCEPTANCE = NoiseStream
Draw = tuple[int, NoiseStream, int]
"""Seed, stream, position."""

# Neighbouring draws, which must be independent of each other.
NEIGHBOURS: dict[str, Callable[[int], tuple[Draw, Draw]]] = {
    "seeds": lambda i: ((2 * i, SHARED, 5), (2 * i + 1, SHARED, 5)),
    "positions": lambda i: ((7, SHARED, 2 * i), (7, SHARED, 2 * i + 1)),
    "seed and position exchanged": lambda i: ((2 * i + 1, SHARED, 2 * i), (2 * i, SHARED, 2 * i + 1)),
    "streams of draft and target": lambda i: ((i, SHARED, 9), (i, DRAFT, 9)),
    "streams of draft and coin": lambda i: ((i, DRAFT, 9), (i, ACCEPTANCE, 9)),
    "streams of coin and target": lambda i: ((i, ACCEPTANCE, 9), (i, SHARED, 9)),
    "far seeds": lambda i: ((i, SHARED, 3), (2**64 - 1 - i, SHARED, 3)),
}

EVERY_SIZE = pytest.mark.parametrize(
    "num_samples",
    [
        SMALL,
        pytest.param(
            samples_needed(TOTAL_VARIATION, NUM_BINS - 1, ALPHA, POWER) + _WORDS,
            marks=pytest.mark.statistical,
        ),
    ],
    ids=["few", "many"],
)


def _values(draws: Iterator[Draw]) -> np.ndarray:
    """Return uniform noise, with one row of a few words for each draw."""
    return uniform(np.stack([words_at(*draw, _WORDS) for draw in draws]))


@EVERY_SIZE
@pytest.mark.parametrize("name", NEIGHBOURS)
def test_neighbouring_noise_is_uniform_and_independent(
    name: str, num_samples: int, accept: Callable[[Judgement], None]
) -> None:
    """The unit square is divided into 64 cells; the test covers joint and marginal distributions."""
    pairs = [NEIGHBOURS[name](index) for index in range(num_samples // _WORDS)]
    first, second = (_values(draw[side] for draw in pairs) for side in (0, 1))
    _accept_grid(f"neighbouring noise: {name}", first, second, accept)


@EVERY_SIZE
def test_neighbouring_words_are_independent(num_samples: int, accept: Callable[[Judgement], None]) -> None:
    values = uniform(words_at(11, SHARED, 4, 2 * num_samples)).reshape(-1, 2)
    _accept_grid("neighbouring noise: words", values[:, 0], values[:, 1], accept)


@EVERY_SIZE
def test_noise_is_uniform_in_fine_bins(num_samples: int, accept: Callable[[Judgement], None]) -> None:
    """Over seeds and positions together; also by the largest distance between the distribution functions."""
    draws = ((index, SHARED, index % 101) for index in range(num_samples // _WORDS))
    values = _values(draws).ravel()
    assert values.min() > 0 and values.max() < 1
    counts = np.bincount((values * NUM_BINS).astype(int), minlength=NUM_BINS)
    accept(judge_law("noise in 64 bins", counts, np.full(NUM_BINS, 1 / NUM_BINS)))
    assert stats.kstest(values, "uniform").pvalue > ALPHA


def _accept_grid(
    name: str, first: np.ndarray, second: np.ndarray, accept: Callable[[Judgement], None]
) -> None:
    side = NUM_BINS_OF_EACH
    cells = (first * side).astype(int) * side + (second * side).astype(int)
    counts = np.bincount(cells.ravel(), minlength=side**2)
    accept(judge_law(name, counts, np.full(side**2, side**-2.0)))
