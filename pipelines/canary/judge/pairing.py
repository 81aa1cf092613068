"""Pair requests of an arm with requests of the baseline under the same load.

A replay is paired with the request that it repeats. Any other request is paired with the latest unpaired
request of the baseline that arrived before it in the same load band, or else with the next one. So changes
over time affect both arms, and no request is in two pairs. Only the first request of a session counts,
because the router sends the others to the same arm, so they are not independent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.canary.judge.observed import ObservedRequest
from pipelines.router.arms import Arm


@dataclass(frozen=True)
class Pair:
    """Two requests that are compared."""

    candidate: ObservedRequest
    baseline: ObservedRequest


@dataclass(frozen=True)
class NumPairs:
    """Numbers of pairs of candidate and stable pair.

    Attributes:
        asked: Pairs of requests of clients, which are used to compare times; the request of the stable pair
            may have been replayed.
        replayed: Pairs of a replay and the request that it repeats.
    """

    asked: int = 0
    replayed: int = 0


def count_pairs(requests: Sequence[ObservedRequest]) -> NumPairs:
    """Count the pairs of candidate and stable pair among requests in any order."""
    asked = pair_up([each for each in requests if not each.is_replay], "candidate", "stable")
    both = pair_up(requests, "candidate", "stable")
    return NumPairs(len(asked), sum(pair.candidate.is_replay for pair in both))


def pair_up(requests: Sequence[ObservedRequest], candidate: Arm, baseline: Arm) -> list[Pair]:
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
    waiting: dict[str, deque[ObservedRequest]] = {}  # by load band
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
