"""Tests of the judgement of both pairs' memory and CPU time."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from pipelines.canary.checks.server_figures import read_sample
from pipelines.canary.controller.evidence import Evidence
from pipelines.canary.controller.phases import Position
from pipelines.canary.controller.rollout import Progress
from pipelines.canary.judge.limits import Limits
from pipelines.canary.judge.resources import Sample, Taken, cpu_per_token, memory_growth
from pipelines.canary.judge.verdict import Judged, analyse
from pipelines.canary.report.record import judgement
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.errors import CanaryError
from pipelines.triton.backend import gauges
from pipelines.triton.backend.gauges import Gauges
from tests.unit.canary.requests import LIMITS, SLO, samples
from tests.unit.canary.simulated_world import PLAN, SimulatedWorld, begun
from tests.unit.canary.test_controller import phases, roll_out
from tests.unit.triton.test_gauges import Backend, publishing, wait_until

NUM_RUNS = 100


def judged(found: tuple[Sample, ...], limits: Limits = LIMITS) -> dict[str, Judged]:
    each = analyse([], limits, SLO, found).judged
    return {one.metric.name: one for one in each if one.metric.name in ("memory", "cpu_per_token")}


def verdicts(found: tuple[Sample, ...]) -> tuple[str, str]:
    by_name = judged(found)
    return by_name["memory"].verdict, by_name["cpu_per_token"].verdict


def test_two_equal_pairs_pass() -> None:
    assert verdicts(samples()) == ("pass", "pass")


def test_a_leak_fails_and_so_does_twice_the_cpu_time() -> None:
    assert verdicts(samples(leak=0.6)) == ("fail", "pass")
    assert verdicts(samples(candidate_cpu=2.0)) == ("pass", "fail")


def test_growth_between_both_limits_needs_review_however_many_requests() -> None:
    found = judged(samples(leak=0.2))["memory"]
    assert (found.verdict, found.needs_review, found.still_needed) == ("inconclusive", True, None)
    assert found.bounds.low == pytest.approx(found.bounds.high) == pytest.approx(0.087, abs=0.005)


@pytest.mark.parametrize("num", [0, 1, 15, 59])
def test_too_little_is_inconclusive(num: int) -> None:
    """Samples come every 5 s: with 60 of them the candidate has served for 295 s, below resources_s."""
    found = judged(samples(num, leak=3.0))["memory"]
    assert (found.verdict, found.needs_review, found.still_needed) == ("inconclusive", False, 0)
    assert judged(samples(10, num_slices=9, candidate_cpu=3.0))["cpu_per_token"].verdict == "inconclusive"


def machine(rng: np.random.Generator, **candidate: Any) -> tuple[Sample, ...]:
    """Return 15 minutes of realistic memory and CPU time of two processes on a busy machine.

    Each fills its caches, the candidate from empty and the other one long ago. Allocators take and return
    memory in steps. Which of the two is busier at a time is random.
    """
    times = np.arange(0.0, 900.0, 2.0)
    leak = candidate.get("leak_per_s", 0.0)

    def resident(age_s: float, leak_per_s: float) -> Any:
        filled = 60e6 * (1 - np.exp(-(times + age_s) / 120)) + 8e6 * np.log1p(times + age_s)
        jumps = np.cumsum((rng.random(len(times)) < 0.01) * rng.normal(0, 10e6, len(times)))
        return 800e6 + filled + jumps + rng.normal(0, 2e6, len(times)) + leak_per_s * times

    def counters(cpu: float) -> tuple[Any, Any]:
        tokens = rng.poisson(10 * rng.gamma(4, 1, len(times)))  # of requests with about 10 tokens each
        spent = cpu * (
            0.004 * tokens * (1 + 0.5 / np.sqrt(1 + tokens / 20)) * rng.lognormal(0, 0.2, len(times))
        )
        return tokens.cumsum(), (0.01 * len(times) / 900 + spent).cumsum()

    ours, theirs = counters(candidate.get("cpu", 1.0)), counters(1.0)
    memory = resident(0.0, leak), resident(5000.0, 0.0)
    return tuple(
        Sample(
            at_s, Taken(memory[0][n], ours[1][n], ours[0][n]), Taken(memory[1][n], theirs[1][n], theirs[0][n])
        )
        for n, at_s in enumerate(times.tolist())
    )


def at_any_look(found: tuple[Sample, ...]) -> set[str]:
    """Return which of the two metrics ever fail."""
    failed: set[str] = set()
    for num in range(25, len(found) + 1, 25):
        failed |= {name for name, one in judged(found[:num]).items() if one.verdict == "fail"}
    return failed


@pytest.fixture(scope="module")
def equal_pairs() -> list[tuple[Sample, ...]]:
    return [machine(rng) for rng in np.random.default_rng(3).spawn(NUM_RUNS)]


def test_equal_pairs_on_a_busy_machine_never_fail_and_pass_in_the_end(
    equal_pairs: list[tuple[Sample, ...]],
) -> None:
    """Judged 18 times each. A pair with empty caches grows, which must not count as a leak."""
    assert set().union(*map(at_any_look, equal_pairs)) == set()
    assert sum(verdicts(found) == ("pass", "pass") for found in equal_pairs) > 0.98 * NUM_RUNS


def test_a_slope_alone_would_take_full_caches_for_a_leak(equal_pairs: list[tuple[Sample, ...]]) -> None:
    """The negative control: growth since the beginning, compared with the stable pair's."""

    def grown(found: tuple[Sample, ...]) -> float:
        first, last = found[0], found[len(found) // 3]
        ours = last.candidate.resident_bytes / first.candidate.resident_bytes
        return ours - last.stable.resident_bytes / first.stable.resident_bytes

    assert np.mean([grown(found) > LIMITS.memory.pass_below for found in equal_pairs]) > 0.9


@pytest.mark.parametrize(
    ("fault", "name"), [({"leak_per_s": 0.6e6}, "memory"), ({"cpu": 2.0}, "cpu_per_token")]
)
def test_the_faults_of_the_drills_are_found_there(fault: dict[str, float], name: str) -> None:
    for rng in np.random.default_rng(4).spawn(20):
        assert at_any_look(machine(rng, **fault)) == {name}


def test_a_jump_of_memory_is_no_leak() -> None:
    found = [
        replace(each, candidate=replace(each.candidate, resident_bytes=1e9 if number < 160 else 1.5e9))
        for number, each in enumerate(samples())
    ]
    assert verdicts(tuple(found))[0] == "pass"


def test_a_process_that_began_anew_is_measured_from_then_on() -> None:
    before, after = samples(100, leak=3.0), samples(100)
    joined = (*before, *(replace(each, at_s=each.at_s + 500) for each in after))
    assert memory_growth(joined, 300.0).num == 100
    assert verdicts(joined) == ("pass", "pass")


def test_slices_in_which_one_loop_has_much_more_to_do_are_left_out() -> None:
    """A step that serves more requests takes less time per token, so such slices say nothing."""
    unlike = [
        replace(each, candidate=Taken(1e9, each.candidate.cpu_s, each.candidate.output_tokens / 3))
        for each in samples()
    ]
    assert cpu_per_token(unlike).num == 0
    assert cpu_per_token(samples()).num == 199


# From the metrics port -------------------------------------------------------------------------------------

TEXT = """# HELP draftproof_output_tokens_total Output tokens, by where they came from
draftproof_output_tokens_total{{model="speculative",source="draft_model"}} 30
draftproof_output_tokens_total{{model="speculative",source="target"}} 20.000000
draftproof_output_tokens_total{{model="speculative_1",source="target"}} 7
draftproof_process_resident_memory_bytes{{model="speculative"}} 1e+09
draftproof_process_resident_memory_bytes{{model="target"}} 500
draftproof_process_resident_memory_bytes{{model="speculative_1"}} {resident}
draftproof_process_resident_memory_bytes{{model="router"}} 9
draftproof_process_cpu_seconds_total{{model="speculative"}} 15.5
draftproof_control_cpu_seconds_total{{model="speculative"}} 3
draftproof_output_tokens_total{{model="speculative",source="control"}} 400
draftproof_process_cpu_seconds_total{{model="speculative_1"}} 1.25
"""


def pair(loop: str, *models: str) -> PairRecord:
    found = object.__new__(PairRecord)
    object.__setattr__(found, "speculative_model", loop)
    object.__setattr__(found, "models", (*models, loop))
    return found


def read(monkeypatch: pytest.MonkeyPatch, text: str) -> Sample:
    request = httpx.Request("GET", "http://x/metrics")
    monkeypatch.setattr(httpx, "get", lambda *_, **__: httpx.Response(200, text=text, request=request))
    return read_sample("http://x/metrics", pair("speculative_1"), pair("speculative", "target", "draft"), 5.0)


def test_what_the_metrics_port_says_of_both_pairs_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(monkeypatch, TEXT.format(resident=2048))
    assert found == Sample(5.0, Taken(2048, 1.25, 7), Taken(1e9 + 500, 12.5, 50))


def test_a_process_that_says_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = TEXT.format(resident=1).replace('cpu_seconds_total{model="speculative_1"}', "x{}")
    for text in ("", lacking, TEXT.format(resident="much")):
        with pytest.raises(CanaryError, match="memory and CPU time of both pairs cannot be read"):
            read(monkeypatch, text)


def test_old_samples_are_further_apart(tmp_path: Path) -> None:
    now_s = 0.0

    class World(SimulatedWorld):
        def sample(self) -> Sample:
            return Sample(now_s, Taken(1, 1, 1), Taken(1, 1, 1))

    world, rollout = World(tmp_path), begun()
    evidence = Evidence(rollout, (), (), lambda: now_s)
    progress = Progress(Position("shadow", 0.0), 1)
    taken: list[Sample] = []
    while now_s < 7 * 86400:
        taken += evidence.collect(world, progress)[0].samples
        now_s += 10.0
    assert 1000 < len(taken) < 5000
    assert taken[-1].at_s - taken[-2].at_s < 7 * 86400 / 400


# In a rollout ----------------------------------------------------------------------------------------------


def test_a_rollout_with_a_leak_is_rolled_back(tmp_path: Path) -> None:
    record = roll_out(SimulatedWorld(tmp_path, leaked_per_s=2e8))
    assert phases(record)[-1] == "rolled_back"
    assert "fail: memory" in record.transitions[-2].reason
    assert record.samples, "the state keeps them"
    assert judgement(record).verdict == "fail"


def test_a_rollout_whose_figures_cannot_be_read_says_so_and_does_not_pass(tmp_path: Path) -> None:
    record = roll_out(
        SimulatedWorld(tmp_path, broken=("sample",)), replace(PLAN, idle_s=60.0, max_pairs=9000)
    )
    assert phases(record)[-1] == "rolled_back"
    assert "are unknown: memory and CPU time of both pairs cannot be read" in record.transitions[-2].reason
    assert judgement(record).verdict == "inconclusive"


# In a model's process --------------------------------------------------------------------------------------


def test_every_model_publishes_what_its_process_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "INTERVAL_S", 0.01)
    backend = Backend()

    def value(name: str) -> float:
        return backend.values.get((f"draftproof_process_{name}", (("model", "m"),)), 0.0)

    gc.collect()  # what earlier tests left would be freed meanwhile
    with publishing(Gauges(backend, "m")):
        wait_until(lambda: value("resident_memory_bytes") > 20 << 20)
        before, begun_s = value("resident_memory_bytes"), value("cpu_seconds_total")
        kept = bytearray(b"x") * (256 << 20)
        wait_until(lambda: value("resident_memory_bytes") >= before + len(kept) / 2)
        assert begun_s <= time.process_time()
        while time.process_time() < begun_s + 0.5:
            pass
        wait_until(lambda: value("cpu_seconds_total") > begun_s + 0.4)
