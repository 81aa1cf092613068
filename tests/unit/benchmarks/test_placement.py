"""Tests of the measurement of placement: its prompts, its requests and its figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.placement.figures import Run, figures_of
from benchmarks.placement.fleet import NUM_BLOCKS, NUM_SERVERS, Lookups, small
from benchmarks.placement.looks import Phases, Used
from benchmarks.placement.looks import figures_of as looks_of
from benchmarks.placement.workload import Workload, draw, questions_of, texts_of
from build.recipe import load_recipe
from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.errors import InvalidRequestError

WORKLOAD = replace(Workload(), num_texts=3, text_tokens=100, question_tokens=10)
PROMPTS = Prompts(
    "made up",
    {
        "long": tuple(Prompt(f"long-{number}", f"text {number}", 40) for number in range(12)),
        "short": (Prompt("short-0", "fits", 10), Prompt("short-1", "too long", 11)),
    },
)


def test_system_prompts_are_long_enough_and_begin_differently() -> None:
    texts = texts_of(PROMPTS, WORKLOAD)
    assert texts[0] == "text 0\n\ntext 1\n\ntext 2"
    assert [text.split("\n")[0] for text in texts] == ["text 0", "text 3", "text 6"]
    with pytest.raises(InvalidRequestError, match="too few prompts"):
        texts_of(PROMPTS, replace(WORKLOAD, num_texts=5))


def test_questions_are_short_prompts_of_the_other_sets() -> None:
    assert questions_of(PROMPTS, WORKLOAD) == ["fits"]


def test_requests_are_drawn_by_popularity_and_again_by_the_same_seed() -> None:
    batch = draw(["a", "b", "c"], ["?"], WORKLOAD, 3000, seed=1)
    assert batch == draw(["a", "b", "c"], ["?"], WORKLOAD, 3000, seed=1)
    assert batch != draw(["a", "b", "c"], ["?"], WORKLOAD, 3000, seed=2)
    counts = Counter(request.prompt[0] for request in batch.requests)
    assert counts["a"] / counts["c"] == pytest.approx(3, rel=0.15)
    assert batch.arrivals_s[-1] == pytest.approx(3000 / WORKLOAD.requests_per_s, rel=0.1)
    assert {request.max_tokens for request in batch.requests} == {WORKLOAD.max_tokens}


def test_one_cache_holds_at_most_half_of_the_texts_and_all_caches_hold_them() -> None:
    in_one = 32 * (NUM_BLOCKS - 1) / Workload().text_tokens
    assert in_one <= Workload().num_texts / 2
    assert NUM_SERVERS * in_one > Workload().num_texts
    assert FrontDoorSettings().prefix_tokens < Workload().text_tokens


def test_a_small_recipe_has_one_thread_and_small_caches() -> None:
    recipe = small(load_recipe("demo"), 193)
    for engine in (recipe.target, recipe.draft):
        assert (engine.num_threads, engine.kv_cache.num_blocks) == (1, 193)
    assert recipe.serving == load_recipe("demo").serving


def run(factor: float) -> Run:
    return Run(tuple(factor * each for each in (0.1, 0.2, 0.6)), Lookups(1000, 1000 - 100 * factor))


def test_times_are_compared_within_rounds() -> None:
    """The second round is ten times as slow for both, which changes no ratio."""
    runs = {"first": [run(1), run(10)], "second": [run(3), run(30)]}
    runs["second"] = [replace(each, lookups=Lookups(1000, 200)) for each in runs["second"]]
    first, second = figures_of(runs, "first")
    assert (first["choice"], first["found_share"]) == ("first", pytest.approx(0.45))
    assert second["found_share"] == pytest.approx(0.2)
    assert first["ttft_s"]["mean"] == pytest.approx((0.3 + 3) / 2)
    for name in ("p50", "mean", "p99"):
        assert first["beside"][name]["value"] == 1
        assert second["beside"][name] == pytest.approx({"value": 3, "low": 3, "high": 3})


def test_lookups_are_those_since_an_earlier_reading() -> None:
    assert Lookups(10, 6).since(Lookups(4, 1)) == Lookups(6, 5)


def test_a_look_costs_what_a_phase_with_looks_takes_more() -> None:
    phases = [
        Phases(Used(0.1, 0.2, 0.0), Used(0.1 + 100 * cost, 0.2, 50 * cost), 100)
        for cost in (1e-4, 2e-4, 3e-4)
    ]
    found = looks_of(phases, 20)
    assert found["gateway_us"]["value"] == pytest.approx(200)
    assert found["models_us"]["value"] == pytest.approx(0)
    assert found["front_door_us"]["value"] == pytest.approx(100)
    assert found["looks_per_s"] == 10
