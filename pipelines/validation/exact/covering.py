"""Build pairwise covering arrays: few combinations that contain every pair of levels of two dimensions.

Most faults of systems with many settings depend on two of them at most; covering each pair takes tens of
combinations where the full product has thousands. The construction is greedy (Cohen et al., "The AETG
system", 1997) without its randomness: the same dimensions give the same array everywhere.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

Row = tuple[int, ...]
_Cell = tuple[int, int]  # dimension, level
_Pair = tuple[_Cell, _Cell]  # the lower dimension first
_Uses = Counter[tuple[_Cell, ...]]  # how often levels and pairs of levels were used


def covering_array(num_levels: Sequence[int]) -> tuple[Row, ...]:
    """Build rows of levels such that one of them contains each pair of levels of two dimensions.

    Args:
        num_levels: Number of levels of each dimension, at least one each; at least two dimensions.

    Returns:
        Rows, where entry d is a level of dimension d, from 0. Levels and pairs are used about equally often.
    """
    if len(num_levels) < 2 or min(num_levels) < 1:
        raise ValueError(f"num_levels={tuple(num_levels)}: two dimensions of one level or more are needed")
    missing = pairs_of_levels(num_levels)
    uses: _Uses = Counter()
    rows = []
    while missing:
        row = _next_row(num_levels, missing, uses)
        rows.append(row)
        pairs = tuple(itertools.combinations(enumerate(row), 2))
        uses.update(pairs)
        uses.update((cell,) for cell in enumerate(row))
        missing.difference_update(pairs)
    return tuple(rows)


def pairs_of_levels(num_levels: Sequence[int]) -> set[_Pair]:
    """Return every pair of levels that ``covering_array`` must contain."""
    return {
        ((first, level), (second, other))
        for first, second in itertools.combinations(range(len(num_levels)), 2)
        for level in range(num_levels[first])
        for other in range(num_levels[second])
    }


def _next_row(num_levels: Sequence[int], missing: set[_Pair], uses: _Uses) -> Row:
    """Build a row from one missing pair by choosing the most useful level of each other dimension."""
    wanted: Counter[_Cell] = Counter()
    for pair in missing:
        wanted.update(pair)
    # Pairs of the widest dimensions determine the number of rows, so each row begins with one of them.
    first, second = min(missing, key=lambda pair: (-wanted[pair[0]] - wanted[pair[1]], pair))
    chosen = [first, second]
    widest_first = sorted(range(len(num_levels)), key=lambda dimension: (-num_levels[dimension], dimension))
    for dimension in widest_first:
        if dimension not in (first[0], second[0]):
            cells = [(dimension, level) for level in range(num_levels[dimension])]
            chosen.append(min(cells, key=lambda cell: (*_merit(cell, chosen, missing, uses), cell)))
    return tuple(level for _, level in sorted(chosen))


def _merit(cell: _Cell, chosen: Sequence[_Cell], missing: set[_Pair], uses: _Uses) -> tuple[int, int]:
    """Rank a level by the missing pairs it covers, then by its earlier uses; lower is better."""
    pairs = [(min(cell, other), max(cell, other)) for other in chosen]
    return -sum(pair in missing for pair in pairs), uses[(cell,)] + sum(uses[pair] for pair in pairs)
