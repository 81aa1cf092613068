"""Tests of pairing: recent requests of the same load, and rounds that began and drafted alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipelines.canary.judge.pairing import Pair, count_pairs, matched_rounds, pair_up
from pipelines.router.observation import Observation
from tests.unit.canary.requests import NO_ROUNDS, replay, request


def candidate(number: int, at_s: float = 0.0, **changes: Any) -> Observation:
    return request(number, arrived_at_s=at_s or number, **changes)


def stable(*numbers: int, **changes: Any) -> list[Observation]:
    return [request(number, "stable", **changes) for number in numbers]


def replayed(number: int, arm: str = "candidate", **changes: Any) -> Observation:
    return request(9, arm, request_id=f"stable-{number}", is_replay=True, **changes)


@pytest.mark.parametrize(
    ("requests", "pairs"),
    [
        # the latest before each candidate
        ([candidate(7, 7.5), candidate(15, 15.5), *stable(*range(20))], {7: 7, 15: 15}),
        # without an earlier partner they wait for the next ones
        ([candidate(0), candidate(1), *stable(2, 3, 4), candidate(5)], {0: 2, 1: 3, 5: 4}),
        # a stable request has one partner
        ([*stable(0, 3), candidate(1), candidate(2)], {1: 0, 2: 3}),
        # load bands do not mix
        ([*stable(0), candidate(1, band="high"), *stable(2, band="high"), candidate(3)], {1: 2, 3: 0}),
        # of a session the first request counts
        ([*stable(*range(0, 12, 2)), *(candidate(n, session_id="long") for n in (1, 3, 5))], {1: 0}),
        ([*stable(0, 2), candidate(1, session_id="a"), candidate(3, session_id="b")], {1: 0, 3: 2}),
    ],
)
def test_each_request_of_the_candidate_has_a_partner_of_its_own(
    requests: list[Observation], pairs: dict[int, int]
) -> None:
    assert names(requests) == {f"candidate-{ours}": f"stable-{theirs}" for ours, theirs in pairs.items()}


def names(requests: list[Observation]) -> dict[str, str]:
    pairs = pair_up(requests, "candidate", "stable")
    return {pair.candidate.request_id: pair.baseline.request_id for pair in pairs}


def test_a_replay_stands_beside_what_it_repeats_and_other_arms_do_not_count() -> None:
    others = [replayed(7), replayed(0, "control"), replayed(7, "stable"), request(6, "control")]
    found = names([*stable(0, 1, 2), replayed(1), *others, candidate(7)])
    assert found == {"stable-1": "stable-1", "candidate-7": "stable-2"}
    later = [candidate(number) for number in (3, 4, 5)]
    found = names([*stable(0, 1, 2), *later, replayed(2)])
    assert found == {"candidate-3": "stable-1", "stable-2": "stable-2"}, "no request is in two pairs"
    of_a_session = [replayed(number, session_id="one") for number in range(3)]
    assert len(names([*stable(0, 1, 2, session_id="one"), *of_a_session])) == 3


def test_requests_of_clients_count_though_the_other_was_replayed() -> None:
    live, replays = [candidate(number, number + 0.5) for number in (2, 4)], list(map(replayed, range(6)))
    assert count_pairs([*stable(*range(6)), *live, *replays]) == (2, 6)
    assert count_pairs([*stable(*range(6)), *live]) == (2, 0)
    assert count_pairs([*live, *replays]) == (0, 0)


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


def both(ours: list[int], theirs: list[int]) -> Pair:
    common = {"num_common_tokens": len(AGREEMENT)}
    return Pair(replay(0, **drafting(ours), **common), request(0, "stable", **drafting(theirs)))


def rounds_of(*pairs: Pair, of: int = 0) -> list[tuple[int, int, int]]:
    """Return the depth of each matched round of a pair, and what candidate and baseline accepted of it."""
    found = matched_rounds(pairs)
    columns = (
        each[found.pair == of].tolist() for each in (found.depth, found.by_candidate, found.by_baseline)
    )
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_one_draft_accepts_as_much_however_much_either_answer_drafts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pair = both(np.minimum(rng.geometric(0.6, 60) - 1, 8).tolist(), rng.integers(1, 9, 60).tolist())
    assert pair.candidate.drafted_per_round != pair.baseline.drafted_per_round
    matched = rounds_of(pair)
    assert matched
    assert all(by_candidate == by_baseline <= depth for depth, by_candidate, by_baseline in matched)


def test_what_is_counted_by_answer_differs_for_the_same_draft() -> None:
    """This is why rounds are matched: a busy pair looks better by rate."""
    pair = both([1] * 60, [8] * 60)
    busy, idle = pair.candidate, pair.baseline
    rates = [sum(each.accepted_per_round) / sum(each.drafted_per_round) for each in (busy, idle)]
    assert rates[0] > 1.3 * rates[1]
    assert max(busy.accepted_per_round) < 3 <= max(idle.accepted_per_round)


FOUR = {"drafted_per_round": (4, 4, 4, 4), "accepted_per_round": (0, 0, 0, 0)}


@pytest.mark.parametrize(
    ("ours", "theirs", "matched"),
    [
        # cut to the depth that both drafted
        (
            {"drafted_per_round": (0, 1, 4), "accepted_per_round": (0, 1, 2)},
            {"drafted_per_round": (0, 3, 2), "accepted_per_round": (0, 1, 0)},
            [(1, 1, 1), (2, 2, 0)],
        ),
        # those that begin elsewhere or draft nothing are left out
        (
            {"drafted_per_round": (2, 2, 0), "accepted_per_round": (0, 2, 0)},
            {"drafted_per_round": (2, 2, 2), "accepted_per_round": (1, 1, 1)},
            [(2, 0, 1)],
        ),
        # a round that begins at the first difference has the same text before it; later ones do not
        *(({**FOUR, "num_common_tokens": num}, FOUR, [(4, 0, 0)] * (num + 1)) for num in range(4)),
        ({**FOUR, "num_common_tokens": 16}, FOUR, [(4, 0, 0)] * 4),
        ({**FOUR, "num_common_tokens": None}, FOUR, []),
        ({}, NO_ROUNDS, []),
        (NO_ROUNDS, {}, []),
    ],
)
def test_rounds_match_that_begin_at_the_same_token_of_the_same_text(
    ours: dict[str, Any], theirs: dict[str, Any], matched: list[tuple[int, int, int]]
) -> None:
    assert rounds_of(Pair(replay(0, **ours), request(0, "stable", **theirs))) == matched


def test_rounds_of_one_answer_are_never_matched_with_anothers() -> None:
    one, other = both([2] * 60, [5] * 60), both([1] * 60, [8] * 60)
    without = Pair(replay(1), request(1, "stable", **NO_ROUNDS)), Pair(replay(2, **NO_ROUNDS), one.baseline)
    pairs = [one, *without, other, one]
    for place, pair in enumerate(pairs):
        assert rounds_of(*pairs, of=place) == rounds_of(pair)
    assert set(matched_rounds(pairs).pair.tolist()) == {0, 3, 4}
    assert not matched_rounds([]).depth.size
