"""Tests of what the bench asks, and when, on scripted servers."""

from __future__ import annotations

import threading

import pytest

from pipelines.bench.measuring import measure, num_different_answers, run_once, warm_up
from pipelines.bench.plan import ADAPTIVE, TARGET_ALONE, Arm, Cell, describe, requests_needed
from pipelines.client import CompletionRequest, Generation
from pipelines.errors import DraftproofError, EngineFailedError, ServerBusyError, VerificationError
from tests.unit.bench.answers import CODE, K2, K4, ODD, answer, measured, plan


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
    measurements = list(measure(plan(concurrency=(1,)), asked))
    alone, k2, k4, adaptive = "generate_target:None", "generate:2", "generate:4", "generate:None"
    num_requests = requests_needed(1)
    assert asked.arms[::num_requests] == [
        *(alone, k2, k4, adaptive),  # only read the prompts
        *(alone, k2, k4, adaptive),
        *(k2, k4, adaptive, alone),
        *(k4, adaptive, alone, k2),
    ]
    assert [measurement.repetition for measurement in measurements] == [0] * 4 + [1] * 4 + [2] * 4


def test_every_cell_has_every_arm_equally_often() -> None:
    measurements = list(measure(plan(prompt_sets=(CODE, ODD)), Asked()))
    assert len(measurements) == 2 * 2 * 4 * 3
    assert {str(each.cell) for each in measurements} == {
        f"{name}, {load}" for name in ("code", "adversarial") for load in ("1 concurrent", "2 concurrent")
    }


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (ServerBusyError("full"), VerificationError, r"K=2 \(code, 2 concurrent\).*--concurrency"),
        (EngineFailedError("broken"), EngineFailedError, "broken"),
    ],
)
def test_a_failed_request_ends_the_bench_and_a_full_queue_says_at_which_load(
    error: DraftproofError, raised: type[DraftproofError], words: str
) -> None:
    def fail(request: CompletionRequest, model: str) -> Generation:
        raise error

    with pytest.raises(raised, match=words):
        run_once(Cell(CODE, 2), K2, 8, fail)


def test_warm_up_asks_every_arm_at_the_greatest_load_and_measures_the_target_alone() -> None:
    asked = Asked()
    (alone,) = warm_up(plan(concurrency=(1, 4)), asked)
    assert set(asked.arms) == {"generate_target:None", "generate:2", "generate:4", "generate:None"}
    assert len(asked.arms) == 4 * requests_needed(4)
    assert (alone.arm, str(alone.cell)) == (TARGET_ALONE, "code, 4 concurrent")


def test_other_answers_are_counted_at_every_load() -> None:
    one, two, four = (Cell(CODE, load) for load in (1, 2, 4))
    measurements = [
        measured(one, K2, 0, 1.0, answer(3), answer(4)),  # before the target alone, as in a later turn
        measured(one, TARGET_ALONE, 0, 1.0, answer(3), answer(4)),
        measured(two, K2, 0, 1.0, answer(3), answer(5)),
        measured(four, ADAPTIVE, 0, 1.0, answer(2), answer(4)),
        measured(two, TARGET_ALONE, 0, 1.0, answer(3), answer(4), answer(1)),
        measured(Cell(ODD, 1), TARGET_ALONE, 0, 1.0, answer(1)),
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
    cell = Cell(CODE, 1)
    assert num_different_answers([measured(cell, arm, 0, 1.0, each) for arm, each in given]) == 1


def test_answers_come_in_the_order_of_the_requests_and_never_more_at_once() -> None:
    lock, running, most = threading.Lock(), 0, 0

    def ask(request: CompletionRequest, model: str) -> Generation:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.005)
        with lock:
            running -= 1
        return answer(text=request.prompt)

    cell = Cell(CODE, 4)
    found = run_once(cell, K2, 8, ask)
    assert most == 4
    assert [each.text for each in found.generations] == [each.prompt for each in cell.first_requests]


def test_the_plan_says_how_much_it_asks() -> None:
    whole = plan(concurrency=(1, 16))
    assert whole.num_requests == (4 + 32) * 3 * 4
    assert "432 requests" in describe(whole)
