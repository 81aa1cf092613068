"""Acceptance of two pairs where both had the same to do: rounds that begin at one token of one answer.

How many tokens a round drafts depends on the load, and which rounds draft many depends on the text and on
that. So rate, length and survival of one pair differ by a third between an idle server and a busy one, and
what is counted by arm does not tell a worse draft from more to do. A replay repeats the very request that it
is compared with: where a round of each begins at the same token, and all tokens before it are the same, they
had the same to do. Cut to the depth that both drafted, they differ by what the drafts proposed, and by
nothing else; with equal engines, and one draft to choose from, they do not differ at all.

A pair that drafts less than the other is not judged by that here, but by the times that come of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from pipelines.canary.analysis.observed import ObservedRequest
from pipelines.canary.analysis.pairing import Pair

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MatchedRounds:
    """Rounds of two answers, from the same token on: int64 [n] each.

    Attributes:
        pair: Place of their pair among those that were given.
        depth: Draft tokens that both verified; above 0.
        by_candidate: Accepted of these.
        by_baseline: Likewise.
    """

    pair: Counts
    depth: Counts
    by_candidate: Counts
    by_baseline: Counts


def matched_rounds(pairs: Sequence[Pair]) -> MatchedRounds:
    """Rounds of both answers that begin at the same token and draft.

    Args:
        pairs: Of these, replays with the answers that they repeat; others have no such rounds.
    """
    ours, theirs = (_Rounds.of([getattr(pair, name) for pair in pairs]) for name in ("candidate", "baseline"))
    num_common = np.array([_or(pair.candidate.num_common_tokens, -1) for pair in pairs], np.int64)
    _, at, there = np.intersect1d(ours.keys, theirs.keys, assume_unique=True, return_indices=True)
    depth = np.minimum(ours.drafted[at], theirs.drafted[there])
    is_matched = (depth > 0) & (ours.start[at] <= num_common[ours.request[at]])
    at, there, depth = at[is_matched], there[is_matched], depth[is_matched]
    return MatchedRounds(
        ours.request[at],
        depth,
        np.minimum(ours.accepted[at], depth),
        np.minimum(theirs.accepted[there], depth),
    )


@dataclass(frozen=True)
class _Rounds:
    """Of several answers, in their order: int64 [n] each.

    Attributes:
        request: Place of the answer.
        start: Output tokens before the round: each before gave what it accepted and one of the target's own.
        drafted: Draft tokens verified.
        accepted: Of these.
    """

    request: Counts
    start: Counts
    drafted: Counts
    accepted: Counts

    @classmethod
    def of(cls, requests: Sequence[ObservedRequest]) -> _Rounds:
        nums = np.array([each.num_rounds for each in requests], np.int64)
        drafted, accepted = (
            _joined(getattr(each, name) for each in requests)
            for name in ("drafted_per_round", "accepted_per_round")
        )
        before = np.cumsum(1 + accepted) - (1 + accepted)
        is_any = nums > 0
        firsts = (np.cumsum(nums) - nums)[is_any]
        start = before - np.repeat(before[firsts], nums[is_any])
        return cls(np.repeat(np.arange(len(nums)), nums), start, drafted, accepted)

    @property
    def keys(self) -> Counts:
        """One for each answer and token."""
        return (self.request << 32) + self.start


def _joined(rows: Iterable[tuple[int, ...]]) -> Counts:
    return np.fromiter(chain.from_iterable(rows), np.int64)


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value
