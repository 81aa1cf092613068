"""Enumerates every outcome of the random choices with its exact probability, instead of sampling.

``Branching.install`` replaces the random primitives of ``pipelines.speculation.sampling.draws``. Code that
runs under ``outcomes`` then runs once for every path of choices, and each path has a rational probability.
Everything else is the real code: sampler, acceptance rules, executor and loop.

A random variable is identified by what the real noise depends on: seed, stream and position. A variable that
is used twice on a path is the same noise twice: what its first use revealed also holds for the second. The
noise of a position is a cell of the simplex (``races``), a coin is an interval.

The loop does use noise twice, and that is harmless. After a rejection it drafts the positions behind the
rejected one again, with the same stream and position but after other tokens. The rejection depended on the
draft's noise and the coin up to the rejected position, and on the recovered token's noise. All of that is
independent of the noise behind the position, which is therefore as good as new. The enumeration does not rely
on this argument: it treats the second use as what it is, and the distributions come out equal. They do not
where the same noise decides twice about one position, as if draft and target shared it with the ratio rule.

Probabilities are exact for the given weights. The weights are exp(score) on a grid of 1/1024 of the largest.
An identity that holds for every distribution needs no finer grid, and small numbers keep the fractions short.
``tests/unit/speculation/test_processing.py`` tests that ``draws.distribution`` is the softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from pipelines.speculation.sampling import draws
from pipelines.speculation.sampling.noise import NoiseStream
from tests.exact.races import Cell, Weights, untouched

Result = TypeVar("Result")

GRID = 1024

Variable = tuple[int, int, int, str]
"""Seed, stream and position, and the owner's name if each owner has noise of its own."""

Interval = tuple[Fraction, Fraction]
"""The interval within [0, 1] in which a coin is known to lie."""

Noise = dict[Variable, "Cell | Interval"]
"""Knowledge about the variables used so far; all others are untouched."""


def exact_weights(scores: Iterable[float]) -> Weights:
    """Return exp(score) on the grid, scaled so that the largest is 1; 0 only where the score is -inf."""
    scores = list(scores)
    best = max(scores)
    assert math.isfinite(best), f"no law in {scores}"
    return tuple(
        Fraction(0) if score == -math.inf else Fraction(max(1, round(math.exp(score - best) * GRID)), GRID)
        for score in scores
    )


def exact_law(scores: Iterable[float]) -> Weights:
    """Return ``exact_weights``, normalised."""
    weights = exact_weights(scores)
    total = sum(weights)
    return tuple(weight / total for weight in weights)


@dataclass(frozen=True)
class Draw:
    """One drawn token."""

    stream: int
    position: int
    token_id: int


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """One possible outcome of a piece of code.

    ``probability``: conditional on the noise that it started from.
    """

    result: Result
    probability: Fraction
    noise: Noise
    draws: tuple[Draw, ...]


@dataclass
class Branching:
    """A replacement for ``draws`` that takes every path.

    Attributes:
        owner: If named, its noise is independent of every other owner's; "" shares the noise as the real code
            does.
        touched: The variables that the paths of the current ``outcomes`` used.
    """

    owner: str = ""
    touched: set[Variable] = field(default_factory=set)
    drawn: list[Draw] = field(default_factory=list)
    _noise: Noise = field(default_factory=dict)
    _probability: Fraction = Fraction(1)
    _path: list[int] = field(default_factory=list)
    _num_options: list[int] = field(default_factory=list)
    _depth: int = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Branching:
        """Replace the primitives in ``draws``, the only module that defines them."""
        for name in ("draw_token", "draw_weighted", "is_accepted", "distribution"):
            assert callable(getattr(draws, name))
            monkeypatch.setattr(draws, name, getattr(self, name))
        return self

    def outcomes(self, noise: Noise, run: Callable[[], Result]) -> list[Outcome[Result]]:
        """Run code once for every path of random choices in it.

        ``run``: the code; it must do the same on every call except for the random choices.
        """
        found: list[Outcome[Result]] = []
        self.touched = set()
        self._path, self._num_options = [], []
        while True:
            self._noise, self._probability, self._depth, self.drawn = dict(noise), Fraction(1), 0, []
            result = run()
            assert self._depth == len(self._path), "the code did something else than the last time"
            found.append(Outcome(result, self._probability, self._noise, tuple(self.drawn)))
            while self._path and self._path[-1] == self._num_options[-1] - 1:
                self._path.pop()
                self._num_options.pop()
            if not self._path:
                break
            self._path[-1] += 1
        assert sum(outcome.probability for outcome in found) == 1
        return found

    def _choose(self, num_options: int) -> int:
        if num_options == 1:
            return 0
        if self._depth == len(self._path):
            self._path.append(0)
            self._num_options.append(num_options)
        assert self._num_options[self._depth] == num_options, "the code did something else than the last time"
        self._depth += 1
        return self._path[self._depth - 1]

    # The primitives, with the signatures of pipelines.speculation.sampling.draws.

    def draw_token(self, scores: npt.NDArray[np.float64], seed: int, stream: int, position: int) -> int:
        return self._draw(exact_weights(scores.tolist()), seed, stream, position)

    def draw_weighted(self, weights: npt.NDArray[Any], seed: int, stream: int, position: int) -> int:
        return self._draw(tuple(Fraction(weight) for weight in weights), seed, stream, position)

    def _draw(self, weights: Weights, seed: int, stream: int, position: int) -> int:
        variable = (seed, int(stream), position, self.owner)
        self.touched.add(variable)
        cell = self._noise.get(variable, untouched(len(weights)))
        assert isinstance(cell, Cell)
        options = cell.split(weights)
        token_id, rest = options[self._choose(len(options))]
        self._probability *= rest.volume / cell.volume
        self._noise[variable] = rest
        self.drawn.append(Draw(int(stream), position, token_id))
        return token_id

    def is_accepted(self, p: Fraction, q: Fraction, seed: int, position: int) -> bool:
        variable = (seed, int(NoiseStream.ACCEPTANCE), position, self.owner)
        self.touched.add(variable)
        known = self._noise.get(variable, (Fraction(0), Fraction(1)))
        assert isinstance(known, tuple)
        low, high = known
        # coin * q < p: always or never where q is 0.
        border = min(high, max(low, Fraction(p) / Fraction(q))) if q else (high if p > 0 else low)
        options = [
            (is_accepted, interval)
            for is_accepted, interval in ((True, (low, border)), (False, (border, high)))
            if interval[0] < interval[1]
        ]
        is_accepted, rest = options[self._choose(len(options))]
        self._probability *= (rest[1] - rest[0]) / (high - low)
        self._noise[variable] = rest
        return is_accepted

    def distribution(self, scores: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        return np.array(exact_law(scores.tolist()), dtype=object)
