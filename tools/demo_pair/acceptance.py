"""Simulate speculation over the target's own text, and find loops in that text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

_MIN_PERIODS = 3
_MIN_TOKENS = 12


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """Counts of simulated rounds with one number of draft tokens.

    Attributes:
        drafted: Tokens that the draft proposed.
        accepted: Draft tokens that the target accepted.
        rounds: Target passes.
        produced: Tokens of the resulting text.
    """

    drafted: int
    accepted: int
    rounds: int
    produced: int

    def as_json(self) -> dict[str, Any]:
        """Return the counts, acceptance rate and mean acceptance length as a JSON object."""
        return {
            "acceptance_rate": round(self.accepted / max(1, self.drafted), 4),
            "mean_acceptance_length": round(1 + self.accepted / max(1, self.rounds), 4),
            **dataclasses.asdict(self),
        }


def simulate(matches: Iterable[npt.NDArray[np.bool_]], num_draft_tokens: int) -> Acceptance:
    """Simulate speculation over texts, given whether draft and target agree at each position.

    Every accepted prefix equals the target's text. The draft's choice at a position therefore does not depend
    on the rounds before, and agreement on the finished text is sufficient. A round adds the accepted tokens
    and one token of the target. At the end of a text, the draft proposes only as many tokens as are left.

    Args:
        matches: For each text, whether the draft chooses the target's token, ``[tokens]``.
        num_draft_tokens: Draft tokens per round, at least 1.

    Returns:
        The counts, summed over all texts.
    """
    drafted = accepted = rounds = produced = 0
    for row in matches:
        position, length = 0, len(row)
        while position < length:
            proposals = row[position : position + num_draft_tokens]
            agreed = len(proposals) if proposals.all() else int(np.argmin(proposals))
            gained = min(agreed + 1, length - position)
            drafted += len(proposals)
            accepted += agreed
            rounds += 1
            produced += gained
            position += gained
    return Acceptance(drafted, accepted, rounds, produced)


def loop_tokens(tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Mark the tokens of a text that repeat the tokens before them.

    A loop is an exact repetition of at least three periods and at least twelve tokens; its first period is
    not marked.

    Args:
        tokens: One text, ``[tokens]``.

    Returns:
        A mask of the same shape.
    """
    marked = np.zeros(len(tokens), dtype=np.bool_)
    for period in range(1, len(tokens) // _MIN_PERIODS + 1):
        same = np.concatenate([[False], tokens[period:] == tokens[:-period], [False]])
        edges = np.flatnonzero(same[1:] != same[:-1])
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            span = end - begin + period
            if span >= max(_MIN_PERIODS * period, _MIN_TOKENS):
                marked[begin + period : end + period] = True
    return marked
