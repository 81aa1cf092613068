"""Tests of what the bench asks, and when, on scripted servers."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from pipelines.bench.measuring import measure, num_different_answers, run_once, warm_up
from pipelines.bench.plan import (
    ADAPTIVE,
    NUM_ARRIVALS,
    TARGET_ALONE,
    Arm,
    Cell,
    ClosedLoop,
    OpenLoop,
    Pace,
    describe,
    expected_seconds,
)
from pipelines.client import CompletionRequest, Generation
from pipelines.client.workers import Job, Workers
from pipelines.errors import DraftproofError, EngineFailedError, ServerBusyError, VerificationError
from tests.unit.bench.answers import CODE, K2, K4, ODD, REQUESTS, answer, measured, plan

PACE = Pace(single_s=1.0, capacity_per_s={"code": 4.0, "adversarial": 4.0}, num_at_once=16)
FAST = Pace(single_s=1e-3, capacity_per_s={"code": 1e4}, num_at_once=16)


class Asked:
    """An ask that records its requests and answers immediately."""

    def __init__(self) -> None:
        self.arms: list[str] = []
        self.requests: list[CompletionRequest] = []

    def __call__(self, request: CompletionRequest, model: str) -> Generation:
        self.requests.append(request)
        self.arms.append(f"{model}:{request.num_draft_tokens}")
        return answer()


def test_arms_are_measured_in_turn_beginning_with_another_one_each_time() -> None:
    asked = Asked()
    measurements = list(measure(plan(concurrency=(1,), shares_of_capacity=()), FAST, Workers([asked])))
    alone, k2, k4, adaptive = "generate_target:None", "generate:2", "generate:4", "generate:None"
    num_requests = ClosedLoop(1).num_requests
    assert asked.arms[::num_requests] == [
        *(alone, k2, k4, adaptive),  # only read the prompts
        *(alone, k2, k4, adaptive),
        *(k2, k4, adaptive, alone),
        *(k4, adaptive, alone, k2),
    ]
    assert [measurement.repetition for measurement in measurements] == [0] * 4 + [1] * 4 + [2] * 4


def test_every_cell_has_every_arm_equally_often() -> None:
    whole = plan(prompt_sets=(CODE, ODD))
    workers = Workers([Asked()] * NUM_ARRIVALS)
    pace = replace(FAST, capacity_per_s={"code": 1e4, "adversarial": 1e4})
    measurements = list(measure(whole, pace, workers))
    assert len(measurements) == 2 * 3 * 4 * 3
    assert {str(each.cell) for each in measurements} == {
        f"{name}, {load}"
        for name in ("code", "adversarial")
        for load in ("1 concurrent", "2 concurrent", "arrivals at 0.5 of capacity")
    }


def test_all_arms_of_a_repetition_have_the_same_arrivals_and_each_repetition_others() -> None:
    seen: list[tuple[float, ...]] = []

    class Watched(Workers):
        def run(self, jobs: Any, num_at_once: int, *args: Any, **kwargs: Any) -> Any:
            seen.append(kwargs["arrivals_s"])
            return super().run(jobs, num_at_once, *args, **kwargs)

    whole = plan(concurrency=(1,), shares_of_capacity=(0.5,))
    list(measure(whole, FAST, Watched([Asked()] * NUM_ARRIVALS)))
    arrivals = seen[4 + 12 + 4 :]  # after the closed loop and what reads the prompts
    assert [len(set(arrivals[first : first + 4])) for first in (0, 4, 8)] == [1, 1, 1]
    assert len(set(arrivals)) == 3
    assert len(arrivals[0]) == NUM_ARRIVALS


def test_a_job_begins_at_its_arrival_and_a_wait_for_a_worker_counts() -> None:
    begun: list[float] = []

    def ask(request: CompletionRequest, model: str) -> Generation:
        begun.append(time.monotonic())
        time.sleep(0.2)
        return answer(ttft=0.1, e2e=0.2)

    jobs = [Job(request, "generate") for request in REQUESTS[:3]]
    started = time.monotonic()
    first, second, third = Workers([ask]).run(jobs, 1, arrivals_s=(0.05, 0.06, 0.6))
    assert begun[0] - started >= 0.05
    assert begun[2] - started >= 0.6
    assert isinstance(first, Generation) and isinstance(second, Generation) and isinstance(third, Generation)
    assert second.ttft_s is not None
    # The second arrived at 0.06 s and began when the only worker was free, after 0.25 s.
    assert (
        second.ttft_s - 0.1
        == pytest.approx(second.e2e_latency_s - 0.2)
        == pytest.approx(begun[1] - started - 0.06, abs=0.03)
    )
    assert second.e2e_latency_s > first.e2e_latency_s + 0.1
    assert third.e2e_latency_s < second.e2e_latency_s


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (ServerBusyError("full"), VerificationError, r"K=2 \(code, arrivals at 1.1 of capacity\).*--rates"),
        (EngineFailedError("broken"), EngineFailedError, "broken"),
    ],
)
def test_a_failed_request_ends_the_bench_and_a_full_queue_says_at_which_load(
    error: DraftproofError, raised: type[DraftproofError], words: str
) -> None:
    def fail(request: CompletionRequest, model: str) -> Generation:
        raise error

    with pytest.raises(raised, match=words):
        run_once(Cell(CODE, OpenLoop(1.1)), K2, 8, Workers([fail] * NUM_ARRIVALS), [0.0] * NUM_ARRIVALS)


def test_warm_up_asks_every_arm_at_the_greatest_load_and_measures_the_target_alone() -> None:
    asked = Asked()
    pace, alone = warm_up(plan(concurrency=(1, 4)), Workers([asked] * 4))
    num_requests = ClosedLoop(4).num_requests
    assert set(asked.arms) == {"generate_target:None", "generate:2", "generate:4", "generate:None"}
    assert len(asked.arms) == 4 * num_requests + ClosedLoop(1).num_requests
    assert [(each.arm, str(each.cell)) for each in alone] == [
        (TARGET_ALONE, "code, 4 concurrent"),
        (TARGET_ALONE, "code, 1 concurrent"),
    ]
    assert pace.capacity_per_s["code"] == pytest.approx(num_requests / alone[0].wall_s)
    assert pace.single_s == pytest.approx(alone[1].wall_s / ClosedLoop(1).num_requests)


def test_other_answers_are_counted_at_every_load() -> None:
    one, two, poisson = (Cell(CODE, load) for load in (ClosedLoop(1), ClosedLoop(2), OpenLoop(0.5)))
    measurements = [
        measured(one, K2, 0, 1.0, answer(3), answer(4)),  # before the target alone, as in a later turn
        measured(one, TARGET_ALONE, 0, 1.0, answer(3), answer(4)),
        measured(two, K2, 0, 1.0, answer(3), answer(5)),
        measured(poisson, ADAPTIVE, 0, 1.0, answer(2), answer(4)),
        measured(two, TARGET_ALONE, 0, 1.0, answer(3), answer(4), answer(1)),
        measured(Cell(ODD, ClosedLoop(1)), TARGET_ALONE, 0, 1.0, answer(1)),
    ]
    assert num_different_answers(measurements) == 2


@pytest.mark.parametrize(
    "given",
    [
        # The first of the target alone counts, not a wrong one before it.
        [(K2, answer(9)), (K4, answer(3)), (TARGET_ALONE, answer(3))],
        [(TARGET_ALONE, answer(3)), (TARGET_ALONE, answer(4))],  # it differs from itself
    ],
)
def test_each_answer_unlike_the_first_of_the_target_alone_counts(given: list[tuple[Arm, Generation]]) -> None:
    cell = Cell(CODE, ClosedLoop(1))
    assert num_different_answers([measured(cell, arm, 0, 1.0, each) for arm, each in given]) == 1


def test_the_expected_time_follows_the_measured_pace() -> None:
    # 1 request/s alone and 4 with 16 concurrent requests: a power law with exponent 1/2.
    assert PACE.seconds_of(Cell(CODE, ClosedLoop(1))) == pytest.approx(4.0)
    assert PACE.seconds_of(Cell(CODE, ClosedLoop(4))) == pytest.approx(8 / 2)
    assert PACE.seconds_of(Cell(CODE, ClosedLoop(16))) == pytest.approx(32 / 4)
    own_s = 16 / 4 / 2
    assert PACE.seconds_of(Cell(CODE, OpenLoop(0.5))) == pytest.approx(NUM_ARRIVALS / 2 + own_s)
    assert PACE.seconds_of(Cell(CODE, OpenLoop(2.0))) == pytest.approx(NUM_ARRIVALS / 4 + own_s)
    whole = plan(concurrency=(1, 16), shares_of_capacity=(0.5,))
    assert expected_seconds(whole, PACE) == pytest.approx((4 + 8 + 10) * 3 * 4)
    assert "36 measurements, about 4 minutes" in describe(whole, PACE)
