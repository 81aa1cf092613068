"""Tests of the circuit breaker: a failing arm is taken out, tried again, and returns when it answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import (
    EngineFailedError,
    InternalError,
    InvalidRequestError,
    PromptTooLongError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerBusyError,
    TransportError,
)
from pipelines.router import breaker as breaker_module
from pipelines.router.breaker import FAILURES, Breaker, Outcome, outcome_of


@pytest.fixture(autouse=True, scope="module")
def small_limits() -> Iterator[None]:
    """Let few outcomes decide."""
    with pytest.MonkeyPatch.context() as patch:
        for name, limit in (("MAX_IN_A_ROW", 3), ("MIN_OUTCOMES", 10), ("MAX_OUTCOMES", 20)):
            patch.setattr(breaker_module, name, limit)
        patch.setattr(breaker_module, "LAST_PAUSE_S", 8.0)
        yield


def breaker_of(outcomes: list[Outcome], now_s: float = 0.0) -> Breaker:
    breaker = Breaker("candidate")
    for outcome in outcomes:
        breaker.begin(now_s)(outcome, now_s)
    return breaker


def test_failures_in_a_row_take_an_arm_out_and_an_answer_between_them_does_not() -> None:
    assert breaker_of(["error", "timeout", "answered", "error", "timeout"]).state(0.0) == "closed"
    breaker = breaker_of(["error", "timeout", "error"])
    assert breaker.state(0.0) == "open"
    assert not breaker.lets_through(0.99)


def test_a_share_of_failures_takes_an_arm_out_once_there_is_enough_to_share() -> None:
    ill: list[Outcome] = ["error", "answered"]
    assert breaker_of(ill * 4).state(0.0) == "closed"
    assert breaker_of(ill * 5).state(0.0) == "open"
    assert breaker_of(["error", "answered", "answered"] * 30).state(0.0) == "closed"


def test_an_arm_that_its_own_answer_takes_out_comes_back_with_the_next_one() -> None:
    breaker = breaker_of(["answered", "error", "error", "answered", "error", "answered", "error", "error"])
    states = []
    for now_s in (8.0, 16.0, 24.0):
        breaker.begin(now_s)("answered", now_s)
        states.append(breaker.state(now_s))
    assert states == ["closed", "open", "closed"]


def test_what_is_old_counts_neither_by_time_nor_by_number() -> None:
    breaker = breaker_of(["answered", "error"] * 4)
    for _ in range(2):
        breaker.begin(31.0)("error", 31.0)
        breaker.begin(31.0)("answered", 31.0)
    assert breaker.state(31.0) == "closed"
    breaker = breaker_of(["answered"] * 100 + ["error", "error", "answered"] * 4 + ["error", "error"])
    assert breaker.state(0.0) == "open"  # 10 of the latest 20


CAUSES: tuple[tuple[BaseException, Outcome, bool], ...] = (
    (EngineFailedError("a step failed"), "error", True),
    (EngineFailedError("the process is gone"), "error", True),
    (InternalError("a defect"), "error", True),
    (KeyError("a defect of whoever asks"), "error", True),
    (InvalidRequestError("invalid"), "refused", False),
    (PromptTooLongError("too long"), "refused", False),
    (RequestCancelledError("the client left"), "cancelled", False),
    (RequestTimeoutError("the client's deadline"), "cancelled", False),
    (ServerBusyError("the queue is full"), "busy", False),
    (TransportError("a header that cannot be read"), "unreached", False),
)


@pytest.mark.parametrize(("cause", "outcome", "counts"), CAUSES, ids=lambda each: type(each).__name__)
def test_what_counts_against_an_arm_is_its_own_failure_alone(
    cause: BaseException, outcome: Outcome, counts: bool
) -> None:
    assert outcome_of(cause) == outcome
    assert (outcome in FAILURES) == counts
    assert (breaker_of([outcome_of(cause)] * 50).state(0.0) == "open") == counts


@pytest.mark.parametrize("outcome", ["busy", "unreached", "refused", "cancelled"])
def test_errors_that_are_not_the_arms_do_not_count(outcome: Outcome) -> None:
    assert breaker_of([outcome] * 50).state(0.0) == "closed"
    breaker = breaker_of(["error", "error", outcome, "error"])
    assert breaker.state(0.0) == "open"  # nor does it end a series of failures
    breaker.begin(1.0)(outcome, 1.0)
    assert breaker.lets_through(1.0)  # a trial without a result makes room for the next


def test_after_the_pause_one_request_tries_and_its_answer_brings_the_arm_back() -> None:
    breaker = breaker_of(["error"] * 3)
    assert breaker.state(1.0) == "half_open"
    assert breaker.lets_through(1.0)
    probe = breaker.begin(1.0)
    assert not breaker.lets_through(1.5)
    probe("answered", 2.0)
    assert breaker.state(2.0) == "closed"
    for _ in range(2):
        breaker.begin(2.0)("error", 2.0)
    assert breaker.state(2.0) == "closed"  # failures of before are forgotten


def test_pauses_double_up_to_the_ceiling() -> None:
    breaker = breaker_of(["error"] * 3)
    now_s = 0.0
    for pause_s in (1.0, 2.0, 4.0, 8.0, 8.0):
        assert not breaker.lets_through(now_s + pause_s - 0.01)
        now_s += pause_s
        assert breaker.lets_through(now_s)
        breaker.begin(now_s)("error", now_s)


def test_an_arm_that_fails_again_soon_after_its_return_stays_out_for_longer() -> None:
    breaker = breaker_of(["error"] * 3)
    breaker.begin(1.0)("answered", 1.0)
    for _ in range(3):
        breaker.begin(20.0)("error", 20.0)
    assert not breaker.lets_through(21.9)
    assert breaker.lets_through(22.0)
    breaker.begin(22.0)("answered", 22.0)
    for _ in range(3):
        breaker.begin(60.0)("error", 60.0)
    assert breaker.lets_through(61.0)  # it had worked for longer than the window


def test_what_was_asked_before_the_arm_was_taken_out_tells_nothing_new() -> None:
    breaker = Breaker("candidate")
    earlier = [breaker.begin(0.0) for _ in range(9)]
    for asked in earlier[:3]:
        asked("error", 0.1)
    for asked in earlier[3:6]:
        asked("error", 0.9)
    assert breaker.lets_through(1.1)  # they do not lengthen the pause
    earlier[6]("answered", 1.1)
    assert breaker.state(1.1) == "half_open"
    probe = breaker.begin(1.1)
    earlier[7]("error", 1.2)
    assert not breaker.lets_through(1.2)  # the trial continues
    probe("answered", 1.3)
    for _ in range(2):
        breaker.begin(1.4)("error", 1.4)
    earlier[8]("error", 1.5)
    assert breaker.state(1.5) == "closed"


def test_an_arm_that_answers_as_a_last_resort_is_back_and_one_that_fails_so_waits_no_longer() -> None:
    breaker = breaker_of(["error"] * 3)
    breaker.begin(0.5)("error", 0.5)
    assert breaker.lets_through(1.0)
    breaker.begin(1.0)
    breaker.begin(1.1)("error", 1.2)
    assert breaker.state(1.2) == "half_open" and not breaker.lets_through(1.2)  # the trial continues
    breaker = breaker_of(["error"] * 3)
    breaker.begin(0.5)("answered", 0.6)
    assert breaker.state(0.6) == "closed"


@given(st.data())
def test_however_outcomes_interleave_one_trial_at_most_is_under_way_and_the_arm_is_never_lost(
    data: st.DataObject,
) -> None:
    breaker = Breaker("candidate")
    now_s = 0.0
    running: list[Any] = []
    for _ in range(data.draw(st.integers(0, 80))):
        now_s += data.draw(st.sampled_from([0.0, 0.5, 3.0]))
        if running and data.draw(st.booleans()):
            asked = running.pop(data.draw(st.integers(0, len(running) - 1)))
            outcome = data.draw(st.sampled_from(["answered", "error", "error", "error", "cancelled"]))
            asked(outcome, now_s)
        elif breaker.lets_through(now_s):
            running.append(breaker.begin(now_s))
        if breaker.state(now_s) == "half_open":
            under_way = sum(asked.args == (breaker._num_turns, True) for asked in running)
            assert under_way == (0 if breaker.lets_through(now_s) else 1)
    for asked in running:
        asked("error", now_s)
    # An answer opens it if it is the tenth outcome and half have failed. By the last one they are too old.
    for _ in range(math.ceil(breaker_module.WINDOW_S / breaker_module.LAST_PAUSE_S)):
        now_s += breaker_module.LAST_PAUSE_S
        assert breaker.lets_through(now_s)
        breaker.begin(now_s)("answered", now_s)
    assert breaker.state(now_s) == "closed"
