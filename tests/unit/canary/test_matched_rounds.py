"""Tests of matched rounds: rounds of two answers that began and drafted alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipelines.canary.judge.observed import ObservedRequest
from pipelines.canary.judge.pairing import Pair, matched_rounds
from tests.unit.canary.requests import replay, request

AGREEMENT = [True, True, False, True, True, True, True, False, False, True, True, True] * 4
"""For each token of an answer, whether a draft would have proposed it, given all tokens before it."""


def drafting(lengths: list[int]) -> dict[str, tuple[int, ...]]:
    """Return the rounds of an answer to which a draft with ``AGREEMENT`` proposes so many tokens each."""
    drafted, accepted, start = [], [], 0
    for length in lengths:
        length = min(length, len(AGREEMENT) - start - 1)
        agreed = 0
        while agreed < length and AGREEMENT[start + agreed]:
            agreed += 1
        drafted.append(length)
        accepted.append(agreed)
        start += agreed + 1
        if start >= len(AGREEMENT):
            break
    return {"drafted_per_round": tuple(drafted), "accepted_per_round": tuple(accepted)}


def rounds_of(replayed: ObservedRequest, repeated: ObservedRequest) -> list[tuple[int, int, int]]:
    """Return the depth of each matched round, and what candidate and baseline accepted of it."""
    found = matched_rounds([Pair(replayed, repeated)])
    assert not found.pair.any()
    columns = found.depth, found.by_candidate, found.by_baseline
    return list(zip(*(each.tolist() for each in columns), strict=True))


def both(candidate: list[int], stable: list[int], **changes: Any) -> tuple[ObservedRequest, ObservedRequest]:
    common = {"num_common_tokens": len(AGREEMENT), **changes}
    return replay(0, **drafting(candidate), **common), request(0, "stable", **drafting(stable))


@pytest.mark.parametrize("seed", range(20))
def test_one_draft_accepts_as_much_however_much_either_answer_drafts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    busy = np.minimum(rng.geometric(0.6, 60) - 1, 8).tolist()
    idle = rng.integers(1, 9, 60).tolist()
    replayed, repeated = both(busy, idle)
    assert replayed.drafted_per_round != repeated.drafted_per_round
    matched = rounds_of(replayed, repeated)
    assert matched
    for depth, by_candidate, by_baseline in matched:
        assert by_candidate == by_baseline <= depth


def test_what_is_counted_by_answer_differs_for_the_same_draft() -> None:
    """This is why rounds are matched: a busy pair looks better by rate, and worse by survival."""
    busy, idle = both([1] * 60, [8] * 60)
    rates = [each.total_accepted_draft_tokens / each.total_draft_tokens for each in (busy, idle)]
    assert rates[0] > 1.3 * rates[1]
    third = [sum(num >= 3 for num in each.accepted_per_round) / each.num_rounds for each in (busy, idle)]
    assert third[0] == 0 < third[1]


def test_rounds_are_cut_to_the_depth_that_both_drafted() -> None:
    replayed = replay(0, drafted_per_round=(0, 1, 4), accepted_per_round=(0, 1, 2))
    repeated = request(0, "stable", drafted_per_round=(0, 3, 2), accepted_per_round=(0, 1, 0))
    assert rounds_of(replayed, repeated) == [(1, 1, 1), (2, 2, 0)]


def test_rounds_that_begin_elsewhere_or_draft_nothing_are_left_out() -> None:
    replayed = replay(0, drafted_per_round=(2, 2, 0), accepted_per_round=(0, 2, 0))
    repeated = request(0, "stable", drafted_per_round=(2, 2, 2), accepted_per_round=(1, 1, 1))
    assert rounds_of(replayed, repeated) == [(2, 0, 1)]


def test_after_the_first_difference_of_the_answers_nothing_is_compared() -> None:
    four = {"drafted_per_round": (4, 4, 4, 4), "accepted_per_round": (0, 0, 0, 0)}
    nums = [
        len(rounds_of(replay(0, num_common_tokens=num, **four), request(0, "stable", **four)))
        for num in (0, 1, 2, 3, 16)
    ]
    assert nums == [1, 2, 3, 4, 4], "a round that begins at the first difference has the same text before it"
    assert rounds_of(replay(0, num_common_tokens=None, **four), request(0, "stable", **four)) == []


def test_answers_whose_rounds_are_not_known_have_none() -> None:
    nothing = {"drafted_per_round": (), "accepted_per_round": ()}
    assert rounds_of(replay(0), request(0, "stable", **nothing)) == []
    assert rounds_of(replay(0, **nothing), request(0, "stable")) == []


def test_pairs_keep_to_themselves() -> None:
    """Rounds of one answer are never matched with another's, even across answers without rounds."""
    nothing = {"drafted_per_round": (), "accepted_per_round": ()}
    one, other = both([2] * 60, [5] * 60), both([1] * 60, [8] * 60)
    given = [one, (replay(1), request(1, "stable", **nothing)), (replay(2, **nothing), one[1]), other, one]
    found = matched_rounds([Pair(*each) for each in given])
    for place, each in enumerate(given):
        is_its = found.pair == place
        columns = (found.depth[is_its], found.by_candidate[is_its], found.by_baseline[is_its])
        assert list(zip(*(column.tolist() for column in columns), strict=True)) == rounds_of(*each)
    assert set(found.pair.tolist()) == {0, 3, 4}


def test_no_pairs_have_no_rounds() -> None:
    assert not matched_rounds([]).depth.size
