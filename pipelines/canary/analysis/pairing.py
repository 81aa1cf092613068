"""Puts each request of an arm beside one of the baseline: a fresh baseline of equal size, and of equal load.

A replay stands beside the request that it repeats. Else a request stands beside the latest of the baseline
that arrived before it in the same load band and has no other partner, or beside the next one. So whatever
changes with time changes for both, and no request is in two pairs. Of a session only the first request
counts: the router sends the others after it, so they say less than as many sessions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.canary.analysis.observed import ObservedRequest
from pipelines.routing.arms import Arm


@dataclass(frozen=True)
class Pair:
    """Two requests that are compared."""

    candidate: ObservedRequest
    baseline: ObservedRequest


@dataclass(frozen=True)
class NumPairs:
    """How much there is to judge by.

    Attributes:
        asked: Requests that clients had answered by the candidate, each beside one of the stable pair, as
            times are compared. Whether that one was replayed does not matter.
        replayed: Replays beside what they repeat.
    """

    asked: int = 0
    replayed: int = 0


def count_pairs(requests: Sequence[ObservedRequest]) -> NumPairs:
    """Pairs of candidate and stable pair, of any requests in any order."""
    asked = pair_up([each for each in requests if not each.is_replay], "candidate", "stable")
    both = pair_up(requests, "candidate", "stable")
    return NumPairs(len(asked), sum(pair.candidate.is_replay for pair in both))


def pair_up(requests: Sequence[ObservedRequest], candidate: Arm, baseline: Arm) -> list[Pair]:
    """Pairs in the order in which their later request arrived.

    Args:
        requests: Of any arms, in any order.
        candidate: The arm that is judged.
        baseline: The arm beside it.
    """
    in_order = sorted(requests, key=lambda request: request.arrived_at_s)
    originals = {each.request_id: each for each in in_order if each.arm == baseline and not each.is_replay}
    replayed = {each.request_id for each in in_order if each.arm == candidate and each.is_replay}
    pairs: list[Pair] = []
    waiting: dict[str, deque[ObservedRequest]] = {}
    latest: dict[str, ObservedRequest] = {}
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
