"""Tests of the judgement of both pairs' memory and CPU time, and of reading them from a server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from pipelines.canary.judge.resources import Sample, Taken, cpu_per_token, memory_growth, read_taken
from pipelines.canary.judge.verdict import Judged, analyse
from pipelines.errors import CanaryError
from tests.unit.canary.requests import LIMITS, SLO, samples


def judged(found: tuple[Sample, ...]) -> dict[str, Judged]:
    each = analyse([], LIMITS, SLO, found).judged
    return {one.metric.name: one for one in each if one.metric.name in ("memory", "cpu_per_token")}


def verdicts(found: tuple[Sample, ...]) -> tuple[str, str]:
    by_name = judged(found)
    return by_name["memory"].verdict, by_name["cpu_per_token"].verdict


def jumping() -> tuple[Sample, ...]:
    found = samples()
    after = [replace(each, candidate=replace(each.candidate, resident_bytes=1.5e9)) for each in found[160:]]
    return (*found[:160], *after)


def restarted() -> tuple[Sample, ...]:
    after = [replace(each, at_s=each.at_s + 500) for each in samples(100)]
    return (*samples(100, leak=3.0), *after)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (samples(), ("pass", "pass")),
        (samples(leak=0.6), ("fail", "pass")),
        (samples(candidate_cpu=2.0), ("pass", "fail")),
        (jumping(), ("pass", "pass")),  # a single jump is no leak
        (restarted(), ("pass", "pass")),  # measured from the restart on
        # samples come every 5 s: with 60 of them the candidate has served for 295 s, below resources_s
        *((samples(num, leak=3.0), ("inconclusive", "inconclusive")) for num in (0, 1)),
        (samples(59, leak=3.0), ("inconclusive", "pass")),
        (samples(10, num_slices=9, candidate_cpu=3.0), ("inconclusive", "inconclusive")),
    ],
)
def test_a_leak_fails_and_twice_the_cpu_time_too(
    found: tuple[Sample, ...], expected: tuple[str, str]
) -> None:
    assert verdicts(found) == expected


def test_growth_between_both_limits_needs_review_however_many_requests() -> None:
    found = judged(samples(leak=0.2))["memory"]
    assert (found.verdict, found.needs_review) == ("inconclusive", True)
    assert found.bounds.low == pytest.approx(found.bounds.high) == pytest.approx(0.087, abs=0.005)
    assert memory_growth(restarted(), 300.0).num == 100
    early = judged(samples(59, leak=3.0))["memory"]
    assert not early.needs_review


def test_slices_in_which_one_loop_has_much_more_to_do_are_left_out() -> None:
    """A step that serves more requests takes less time per token, so such slices say nothing."""
    unlike = [
        replace(each, candidate=Taken(1e9, each.candidate.cpu_s, each.candidate.output_tokens / 3))
        for each in samples()
    ]
    assert (cpu_per_token(unlike).num, cpu_per_token(samples()).num) == (0, 199)


def machine(rng: np.random.Generator, leak_per_s: float = 0.0, cpu: float = 1.0) -> tuple[Sample, ...]:
    """Return 15 minutes of realistic memory and CPU time of two processes on a busy machine.

    Each fills its caches, the candidate from empty and the other one long ago. Allocators take and return
    memory in steps. Which of the two is busier at a time is random.
    """
    times = np.arange(0.0, 900.0, 2.0)

    def resident(age_s: float, leak_per_s: float) -> Any:
        filled = 60e6 * (1 - np.exp(-(times + age_s) / 120)) + 8e6 * np.log1p(times + age_s)
        jumps = np.cumsum((rng.random(len(times)) < 0.01) * rng.normal(0, 10e6, len(times)))
        return 800e6 + filled + jumps + rng.normal(0, 2e6, len(times)) + leak_per_s * times

    def counters(cpu: float) -> tuple[Any, Any]:
        tokens = rng.poisson(10 * rng.gamma(4, 1, len(times)))  # of requests with about 10 tokens each
        effort = tokens * (1 + 0.5 / np.sqrt(1 + tokens / 20)) * rng.lognormal(0, 0.2, len(times))
        return (0.01 * len(times) / 900 + 0.004 * cpu * effort).cumsum(), tokens.cumsum()

    ours, theirs = counters(cpu), counters(1.0)
    memory = resident(0.0, leak_per_s), resident(5000.0, 0.0)
    candidate, stable = (
        [Taken(*figures) for figures in zip(bytes_, *counted, strict=True)]
        for bytes_, counted in zip(memory, (ours, theirs), strict=True)
    )
    return tuple(map(Sample, times.tolist(), candidate, stable))


def at_any_look(found: tuple[Sample, ...]) -> set[str]:
    """Return which of the two metrics ever fail, of 18 looks."""
    return {
        name
        for num in range(25, len(found) + 1, 25)
        for name, one in judged(found[:num]).items()
        if one.verdict == "fail"
    }


@pytest.mark.parametrize("num_runs", [20, pytest.param(100, marks=pytest.mark.long)])
def test_equal_pairs_on_a_busy_machine_never_fail_and_pass_in_the_end(num_runs: int) -> None:
    """A pair with empty caches grows, which must not count as a leak, as by the slope alone it would."""

    def grown(found: tuple[Sample, ...]) -> float:
        early, late = found[0], found[len(found) // 3]
        ours = late.candidate.resident_bytes / early.candidate.resident_bytes
        return ours - late.stable.resident_bytes / early.stable.resident_bytes

    runs = [machine(rng) for rng in np.random.default_rng(3).spawn(num_runs)]
    assert set().union(*map(at_any_look, runs)) == set()
    assert sum(verdicts(found) == ("pass", "pass") for found in runs) > 0.98 * num_runs
    assert LIMITS.memory is not None
    assert np.mean([grown(found) > LIMITS.memory.pass_below for found in runs]) > 0.9


@pytest.mark.parametrize(
    ("fault", "name"), [({"leak_per_s": 0.6e6}, "memory"), ({"cpu": 2.0}, "cpu_per_token")]
)
@pytest.mark.parametrize("num_runs", [5, pytest.param(20, marks=pytest.mark.long)])
def test_the_faults_of_the_drills_are_found_there(fault: dict[str, float], name: str, num_runs: int) -> None:
    for rng in np.random.default_rng(4).spawn(num_runs):
        assert at_any_look(machine(rng, **fault)) == {name}


# From the metrics port -------------------------------------------------------------------------------------

SAMPLE = """# HELP draftproof_output_tokens_total Output tokens, by where they came from
draftproof_output_tokens_total{model="speculative",source="draft_model"} 30
draftproof_output_tokens_total{model="speculative",source="target"} 20.000000
draftproof_process_resident_memory_bytes{model="speculative"} 1e+09
draftproof_process_resident_memory_bytes{model="router"} 9
draftproof_process_cpu_seconds_total{model="speculative"} 15.5
draftproof_control_cpu_seconds_total{model="speculative"} 3
draftproof_output_tokens_total{model="speculative",source="control"} 400
"""


def answering(monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    """Let a metrics port answer with a text; return its address."""
    request = httpx.Request("GET", "http://x/metrics")
    monkeypatch.setattr(httpx, "get", lambda *_, **__: httpx.Response(200, text=text, request=request))
    return str(request.url)


def test_what_the_metrics_port_says_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_taken(answering(monkeypatch, SAMPLE)) == Taken(1e9, 12.5, 50)


@pytest.mark.parametrize("text", ["", SAMPLE.replace("process_cpu", "x"), SAMPLE.replace("1e+09", "much")])
def test_a_server_that_does_not_say_is_an_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CanaryError, match="memory and CPU time of a server cannot be read"):
        read_taken(answering(monkeypatch, text))


def test_a_server_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(CanaryError, match=r"cannot be read.*ConnectError"):
        read_taken("http://127.0.0.1:1/metrics")
