"""An exact model of noise that several choices share.

The Gumbel-max choice argmax(log w_i + g_i) is the winner of a race of exponential clocks, argmin(E_i / w_i).
Scaling all clocks does not change the winner, and independent exponential variables divided by their sum are
uniform on the simplex {E_i >= 0, sum E_i = 1}. The noise of a position is therefore one uniform point of that
simplex. A choice cuts the simplex into one convex part per token (E_i w_k <= E_k w_i for all k). The joint
distribution of several choices that share the noise is the volume of intersections of such parts, which is
rational if the weights are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

Point = tuple[int, ...]
"""A point of the simplex, scaled so that its coordinates are integers."""

Weights = tuple[Fraction, ...]


@dataclass(frozen=True)
class Simplex:
    """A part of the simplex; ``volume`` is its share of the whole."""

    corners: tuple[Point, ...]
    volume: Fraction


@dataclass(eq=False)
class Cell:
    """Knowledge about the noise of one position after the choices made with it.

    ``pieces``: simplices that meet at most in their faces.
    """

    pieces: tuple[Simplex, ...]
    _parts: dict[Weights, tuple[tuple[int, Cell], ...]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.volume = sum((piece.volume for piece in self.pieces), Fraction(0))

    def split(self, weights: Weights) -> tuple[tuple[int, Cell], ...]:
        """Return each possible winner with what it reveals about the noise; weights may be unnormalised."""
        found = self._parts.get(weights)
        if found is None:
            parts = ((token, self._where_wins(token, weights)) for token, w in enumerate(weights) if w > 0)
            found = self._parts[weights] = tuple((token, cell) for token, cell in parts if cell.volume)
            assert sum(cell.volume for _, cell in found) == self.volume
        return found

    def _where_wins(self, winner: int, weights: Weights) -> Cell:
        pieces = list(self.pieces)
        whole = math.lcm(*(weight.denominator for weight in weights))
        speeds = [int(weight * whole) for weight in weights]
        for other, speed in enumerate(speeds):
            if other != winner and speed:
                pieces = [
                    part
                    for piece in pieces
                    for part in _where_not_behind(piece, winner, speeds[winner], other, speed)
                ]
        return Cell(tuple(pieces))


@lru_cache
def untouched(num_tokens: int) -> Cell:
    """Return the whole simplex: nothing is known about the noise."""
    corners = tuple(tuple(int(i == k) for k in range(num_tokens)) for i in range(num_tokens))
    return Cell((Simplex(corners, Fraction(1)),))


def _where_not_behind(
    piece: Simplex, winner: int, winner_speed: int, other: int, other_speed: int
) -> list[Simplex]:
    """Return the part of a simplex in which ``winner`` is not behind ``other``.

    Each edge that crosses the border is cut there, which splits the simplex in two, until none crosses.
    """
    leads = [corner[other] * winner_speed - corner[winner] * other_speed for corner in piece.corners]
    ahead = next((i for i, lead in enumerate(leads) if lead > 0), None)
    behind = next((i for i, lead in enumerate(leads) if lead < 0), None)
    if behind is None:
        return [piece]
    if ahead is None:
        return []
    begin, end = piece.corners[ahead], piece.corners[behind]
    border = [leads[ahead] * b - leads[behind] * a for a, b in zip(begin, end, strict=True)]
    divisor = math.gcd(*border)
    corner = tuple(x // divisor for x in border)
    # The border's distance from ``begin`` divided by the edge's length, with coordinates scaled to sum to 1.
    to_border, behind_border = leads[ahead] * sum(end), -leads[behind] * sum(begin)
    share = Fraction(to_border, to_border + behind_border)
    parts = (
        Simplex(_with(piece.corners, behind, corner), piece.volume * share),
        Simplex(_with(piece.corners, ahead, corner), piece.volume * (1 - share)),
    )
    return [
        found for part in parts for found in _where_not_behind(part, winner, winner_speed, other, other_speed)
    ]


def _with(corners: tuple[Point, ...], index: int, corner: Point) -> tuple[Point, ...]:
    return (*corners[:index], corner, *corners[index + 1 :])


def agreement(p: Sequence[Fraction], q: Sequence[Fraction]) -> list[Fraction]:
    """Return P(two choices that share the noise are both token i) for every i, in closed form.

    Token i wins both races if E_i max(p_k / p_i, q_k / q_i) <= E_k for all k, which has probability
    1 / sum_k max(p_k / p_i, q_k / q_i).

    Source: Daliri, Musco, Suresh, arXiv:2408.07978.
    """
    found = []
    for p_i, q_i in zip(p, q, strict=True):
        if p_i and q_i:
            ratios = (max(p_k / p_i, q_k / q_i) for p_k, q_k in zip(p, q, strict=True))
            found.append(1 / sum(ratios, Fraction(0)))
        else:
            found.append(Fraction(0))
    return found


def total_variation(p: Sequence[Fraction], q: Sequence[Fraction]) -> Fraction:
    """Return half the sum of absolute differences."""
    return sum((abs(a - b) for a, b in zip(p, q, strict=True)), Fraction(0)) / 2
