"""Tests of pairing: requests are compared with recent ones of the same load."""

from __future__ import annotations

from pipelines.canary.judge.observed import ObservedRequest
from pipelines.canary.judge.pairing import NumPairs, count_pairs, pair_up
from tests.unit.canary.requests import request


def numbers(requests: list[ObservedRequest]) -> list[tuple[str, str]]:
    pairs = pair_up(requests, "candidate", "stable")
    return [(pair.candidate.request_id, pair.baseline.request_id) for pair in pairs]


def test_of_many_stable_requests_the_latest_before_each_candidate_is_taken() -> None:
    stable = [request(number, "stable") for number in range(20)]
    candidates = [request(number, arrived_at_s=number + 0.5) for number in (7, 15)]
    found = numbers([*candidates, *stable])
    assert found == [("candidate-7", "stable-7"), ("candidate-15", "stable-15")]


def test_candidates_without_an_earlier_partner_wait_for_the_next_ones() -> None:
    arms = ("candidate", "candidate", "stable", "stable", "stable", "candidate")
    found = numbers([request(number, arm) for number, arm in enumerate(arms)])
    assert found == [("candidate-0", "stable-2"), ("candidate-1", "stable-3"), ("candidate-5", "stable-4")]


def test_a_stable_request_has_one_partner() -> None:
    arms = ("stable", "candidate", "candidate", "stable")
    found = numbers([request(number, arm) for number, arm in enumerate(arms)])
    assert found == [("candidate-1", "stable-0"), ("candidate-2", "stable-3")]


def test_requests_of_clients_count_though_the_other_was_replayed() -> None:
    stable = [request(number, "stable", request_id=f"r{number}") for number in range(6)]
    live = [request(number, arrived_at_s=number + 0.5) for number in (2, 4)]
    replays = [request(9, request_id=f"r{number}", is_replay=True) for number in range(6)]
    assert count_pairs([*stable, *live, *replays]) == NumPairs(asked=2, replayed=6)
    assert count_pairs([*stable, *live]) == NumPairs(asked=2, replayed=0)
    assert count_pairs([*live, *replays]) == NumPairs()


def test_load_bands_do_not_mix() -> None:
    requests = [request(0, "stable"), request(1, band="high"), request(2, "stable", band="high"), request(3)]
    assert numbers(requests) == [("candidate-1", "stable-2"), ("candidate-3", "stable-0")]


def test_a_replay_stands_beside_what_it_repeats_and_other_arms_do_not_count() -> None:
    requests = [
        *(request(number, "stable", request_id=f"r{number}") for number in range(3)),
        request(4, request_id="r1", is_replay=True),
        request(5, request_id="lost", is_replay=True),
        request(5, "control", request_id="r0", is_replay=True),
        request(5, "stable", request_id="r7", is_replay=True),
        request(5, request_id="r7", is_replay=True),
        request(6, "control"),
        request(7, request_id="own"),
    ]
    assert numbers(requests) == [("r1", "r1"), ("own", "r2")]


def test_no_request_is_in_two_pairs() -> None:
    stable = [request(number, "stable", request_id=f"r{number}") for number in range(3)]
    replay = request(9, request_id="r2", is_replay=True)
    live = [request(number, request_id=f"own{number}") for number in (3, 4, 5)]
    assert numbers([*stable, *live, replay]) == [("own3", "r1"), ("r2", "r2")]


def test_of_a_session_the_first_request_counts() -> None:
    stable = [request(number, "stable") for number in range(0, 12, 2)]
    candidates = [request(number, session_id="long") for number in (1, 3, 5)]
    others = [request(number, session_id=f"s{number}") for number in (7, 9)]
    found = numbers([*stable, *candidates, *others])
    assert [candidate for candidate, _ in found] == ["candidate-1", "candidate-7", "candidate-9"]


def test_replays_of_a_session_all_count() -> None:
    stable = [request(number, "stable", request_id=f"r{number}", session_id="one") for number in range(3)]
    replays = [request(9, request_id=f"r{number}", session_id="one", is_replay=True) for number in range(3)]
    assert len(numbers([*stable, *replays])) == 3
