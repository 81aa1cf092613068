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

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.canary.analysis.observed import ObservedRequest


@dataclass(frozen=True)
class MatchedRound:
    """Two rounds, from the same token on.

    Attributes:
        depth: Draft tokens that both verified; above 0.
        by_candidate: Accepted of these.
        by_baseline: Likewise.
    """

    depth: int
    by_candidate: int
    by_baseline: int


def matched_rounds(replay: ObservedRequest, repeated: ObservedRequest) -> list[MatchedRound]:
    """Rounds of both answers that begin at the same token and draft.

    Args:
        replay: The candidate's; without ``num_common_tokens`` there are none.
        repeated: The answer that it repeats.
    """
    if replay.num_common_tokens is None:
        return []
    others = {start: (drafted, accepted) for start, drafted, accepted in _rounds(repeated)}
    found = []
    for start, drafted, accepted in _rounds(replay):
        if start in others and start <= replay.num_common_tokens:
            depth = min(drafted, others[start][0])
            found.append(MatchedRound(depth, min(accepted, depth), min(others[start][1], depth)))
    return [each for each in found if each.depth]


def _rounds(request: ObservedRequest) -> Iterator[tuple[int, int, int]]:
    """Of each round the output tokens before it, and what it drafted and accepted.

    A round gives the tokens that it accepts and one of the target's own.
    """
    accepted = request.accepted_per_round
    starts = itertools.accumulate((1 + num for num in accepted), initial=0)
    return zip(starts, request.drafted_per_round, accepted, strict=False)
