"""Tests of the simulation of fleets: recorded speed, one answer after another, and servers that die."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.fleet_simulation.service_times import ServiceTimes
from benchmarks.fleet_simulation.simulated_server import Answer, SimulatedServer
from benchmarks.fleet_simulation.simulation import Death, Fleet, Simulation, at_random, by_placement
from build.recipe import load_recipe
from pipelines.front_door.fleet.placement import Placement

TIMES = ServiceTimes((1, 2, 4), (100.0, 150.0, 200.0), 1000.0, 2, 4096, {})
FLEET = Fleet(4, 2, 2.0, 800, 24, 512, 64, 20)


def finish(server: SimulatedServer) -> list[tuple[float, Answer]]:
    """Let a server complete everything; returns when each answer ended."""
    ended = []
    while (at_s := server.next_event_s()) is not None:
        answer = server.complete(at_s)
        if answer is not None:
            ended.append((at_s, answer))
    return ended


def test_an_answer_alone_takes_its_prompt_and_its_tokens() -> None:
    server, answer = SimulatedServer("a", TIMES, 4), Answer(0, 400, 100, 50, 1.0)
    server.add(answer, 1.0)
    [(at_s, ended)] = finish(server)
    assert ended is answer and not answer.was_cached
    assert answer.first_at_s == pytest.approx(1.5)
    assert at_s == pytest.approx(1.5 + 0.5)
    assert server.busy_s == pytest.approx(1.0)


def test_two_answers_share_the_speed_of_two_and_a_third_waits() -> None:
    server = SimulatedServer("a", TIMES, 4)
    answers = [Answer(0, 400, 100, 75, 0.0) for _ in range(3)]
    for answer in answers:
        server.add(answer, 0.0)
    assert [answer.was_cached for answer in answers] == [False, True, None]
    (first_s, _), (second_s, _), (third_s, _) = finish(server)
    # The second prompt, without the cached beginning, holds the first answer up.
    assert [answer.first_at_s for answer in answers[:2]] == [pytest.approx(0.5), pytest.approx(0.6)]
    assert first_s == pytest.approx(0.6 + 1.0)  # 75 tokens at 75 tokens/s each
    assert second_s == pytest.approx(first_s + 0.1)  # while the prompt of the third is computed
    assert third_s == pytest.approx(second_s + 0.75)


def test_the_cache_forgets_what_was_used_longest_ago() -> None:
    server = SimulatedServer("a", TIMES, 2)
    found = []
    for prefix in (0, 1, 0, 2, 1, 0):
        answer = Answer(prefix, 10, 10, 1, 0.0)
        server.add(answer, 0.0)
        finish(server)
        found.append(answer.was_cached)
    assert found == [False, False, True, False, False, False]


@pytest.mark.parametrize("with_death", [False, True])
def test_every_answer_ends_and_none_is_given_twice(with_death: bool) -> None:
    death = Death(50.0, 2, 0.5) if with_death else None
    choose = by_placement(Placement(512), with_prefix=True)
    simulation = Simulation(FLEET, TIMES, choose, 1, death)
    answers = simulation.run().answers
    assert len(answers) == FLEET.num_requests
    assert all(answer.first_at_s is not None for answer in answers)
    assert not any(server.num_open for door in simulation._doors for server in door)
    broken = [answer for answer in answers if answer.broken_at_s is not None]
    assert bool(broken) == with_death
    for answer in broken:
        assert answer.continued_at_s is not None
        assert answer.continued_at_s >= 50.0 + 0.5
        assert 0 <= answer.num_given < answer.num_tokens


def test_a_prefix_that_stays_with_its_server_is_found_there() -> None:
    def hit_rate(fleet: Fleet, with_prefix: bool | None) -> float:
        choose = at_random(random.Random(0))
        if with_prefix is not None:
            choose = by_placement(Placement(512), with_prefix=with_prefix)
        answers = Simulation(fleet, TIMES, choose, 1).run().answers
        return sum(bool(answer.was_cached) for answer in answers) / len(answers)

    assert hit_rate(FLEET, with_prefix=True) > hit_rate(FLEET, with_prefix=False) + 0.1
    assert hit_rate(FLEET, with_prefix=True) > hit_rate(FLEET, with_prefix=None) + 0.1
    alone = replace(FLEET, num_servers=1, num_front_doors=1)
    assert hit_rate(alone, with_prefix=True) == hit_rate(alone, with_prefix=False)


def test_the_recorded_speed_is_read_from_the_result_files() -> None:
    times = ServiceTimes.recorded(load_recipe("demo-large"))
    assert times.num_at_once == (1, 2, 4, 8, 16)
    assert times.cache_tokens == 32 * 639
    assert times.speed(1) == times.tokens_per_s[0]
    assert times.speed(3) == pytest.approx((times.tokens_per_s[1] + times.tokens_per_s[2]) / 2 / 3)
