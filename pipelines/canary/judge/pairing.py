"""Pair requests of an arm with requests of the baseline under the same load.

A replay is paired with the request that it repeats. Any other request is paired with the latest unpaired
request of the baseline that arrived before it in the same load band, or else with the next one. So changes
over time affect both arms, and no request is in two pairs. Only the first request of a session counts,
because the router sends the others to the same arm, so they are not independent.

Acceptance is compared in *matched rounds*, which begin at the same token of one answer. How many tokens a
round drafts depends on the load and on the text. So the acceptance rate of one pair differs by a third
between an idle and a busy server, and totals per arm cannot tell a worse draft from a higher load. A replay
repeats the request that it is compared with: if a round of each begins at the same token and all tokens
before it are equal, both rounds have the same task. Truncated to the depth that both drafted, they differ
only in what the drafts proposed; with equal engines they do not differ.

A pair that drafts less than the other is judged by the resulting times, not here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from pipelines.router.arms import Arm
from pipelines.router.observation import Observation

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pair:
    """Two requests that are compared."""

    candidate: Observation
    baseline: Observation


def count_pairs(requests: Sequence[Observation]) -> tuple[int, int]:
    """Count the pairs of candidate and stable pair among requests in any order.

    Returns:
        The number of pairs of requests of clients, which are used to compare times, and of a replay and the
        request that it repeats. A request of the stable pair may be in one of each.
    """
    asked = pair_up([each for each in requests if not each.is_replay], "candidate", "stable")
    both = pair_up(requests, "candidate", "stable")
    return len(asked), sum(pair.candidate.is_replay for pair in both)


def pair_up(requests: Sequence[Observation], candidate: Arm, baseline: Arm) -> list[Pair]:
    """Pair requests up.

    Args:
        requests: Requests of any arms in any order.
        candidate: Arm that is judged.
        baseline: Arm that it is compared with.

    Returns:
        Pairs in the order in which their later request arrived.
    """
    in_order = sorted(requests, key=lambda request: request.arrived_at_s)
    originals = {each.request_id: each for each in in_order if each.arm == baseline and not each.is_replay}
    replayed = {each.request_id for each in in_order if each.arm == candidate and each.is_replay}
    pairs: list[Pair] = []
    waiting: dict[str, deque[Observation]] = {}  # by load band
    latest: dict[str, Observation] = {}
    sessions: set[str] = set()
    for request in in_order:
        if request.is_replay:
            if request.arm == candidate and request.request_id in originals:
                pairs.append(Pair(request, originals[request.request_id]))
            continue
        if request.arm not in (candidate, baseline) or request.session_id in sessions:
            continue
        if request.session_id:
            sessions.add(request.session_id)
        others = waiting.setdefault(request.band, deque())
        if request.arm == candidate:
            partner = latest.pop(request.band, None)
            if partner is None:
                others.append(request)
            else:
                pairs.append(Pair(request, partner))
        elif request.request_id in replayed:
            continue
        elif others:
            pairs.append(Pair(others.popleft(), request))
        else:
            latest[request.band] = request
    return pairs


@dataclass(frozen=True)
class MatchedRounds:
    """Matched rounds of candidate and baseline: int64 [n] each.

    Attributes:
        pair: Index of their pair.
        depth: Number of draft tokens that both verified; above 0.
        by_candidate: How many of these the candidate accepted.
        by_baseline: How many of these the baseline accepted.
    """

    pair: Counts
    depth: Counts
    by_candidate: Counts
    by_baseline: Counts


def matched_rounds(pairs: Sequence[Pair]) -> MatchedRounds:
    """Find the rounds of both answers that begin at the same token and draft.

    Args:
        pairs: Pairs of a replay and the request that it repeats; other pairs have no matched rounds.
    """
    ours, theirs = (_Rounds.of([getattr(pair, name) for pair in pairs]) for name in ("candidate", "baseline"))
    common = (pair.candidate.num_common_tokens for pair in pairs)
    num_common = np.array([-1 if num is None else num for num in common], np.int64)
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
    """Rounds of several answers in their order: int64 [n] each.

    Attributes:
        request: Index of the answer.
        start: Output tokens before the round; each round outputs its accepted tokens and one of the target.
        drafted: Draft tokens that were verified.
        accepted: Draft tokens that were accepted.
    """

    request: Counts
    start: Counts
    drafted: Counts
    accepted: Counts

    @classmethod
    def of(cls, requests: Sequence[Observation]) -> _Rounds:
        nums = np.array([len(each.drafted_per_round) for each in requests], np.int64)
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
        """A unique number for each answer and start."""
        return (self.request << 32) + self.start


def _joined(rows: Iterable[tuple[int, ...]]) -> Counts:
    return np.fromiter(chain.from_iterable(rows), np.int64)
