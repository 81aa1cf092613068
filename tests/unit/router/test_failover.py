"""Tests of one answer over several arms that fail, stall, refuse and diverge."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from pipelines.errors import (
    EngineFailedError,
    InvalidRequestError,
    PromptTooLongError,
    RequestCancelledError,
    RequestTimeoutError,
    TransportError,
)
from pipelines.router.arms import Arm
from pipelines.router.breaker import Outcome
from pipelines.router.failover import answer_over
from tests.unit.router.scripted_arms import (
    BUSY,
    CANCELLED_FROM_WITHIN,
    DOWN,
    FOR_EVER_S,
    SLOW_S,
    Chunk,
    ScriptedArms,
    Step,
    answer,
    ends,
    receive,
    says,
)
from tests.unit.router.virtual_time import run


def test_an_arm_that_answers_is_passed_on_as_it_is_and_no_other_is_asked() -> None:
    arms = ScriptedArms({"stable": [1.0, says(1, 2), 1.9, says(3), ends()]})
    received = answer(arms, ("stable", "control"))
    assert [chunk for _, chunk in received.chunks] == [says(1, 2), says(3), ends()]
    assert received.times_s == [1.0, 2.9, 2.9]
    assert arms.outcomes == [("stable", "answered")]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (DOWN, "error"),
        (BUSY, "busy"),
        (TransportError("garbled"), "unreached"),
        (OSError("gone"), "error"),
        (KeyError("a defect"), "error"),
    ],
)
def test_an_arm_that_fails_before_its_first_token_is_replaced_at_once(
    error: Exception, outcome: Outcome
) -> None:
    arms = ScriptedArms({"candidate": [0.5, error], "stable": [error], "control": [says(1), ends(2)]})
    received = answer(arms)
    assert received.is_whole and received.ids == [1, 2] and set(received.arms) == {"control"}
    assert received.times_s == [0.5, 0.5]
    assert arms.outcomes == [("candidate", outcome), ("stable", outcome), ("control", "answered")]


def test_an_answer_without_a_token_is_an_answer() -> None:
    arms = ScriptedArms({"candidate": [ends()]})
    assert answer(arms).chunks == [("candidate", ends())]
    assert arms.outcomes == [("candidate", "answered")]


def test_an_arm_that_ends_without_a_word_has_failed() -> None:
    arms = ScriptedArms({"candidate": [], "stable": [CANCELLED_FROM_WITHIN], "control": [ends(1)]})
    assert answer(arms).ids == [1]
    assert arms.outcomes == [("candidate", "error"), ("stable", "error"), ("control", "answered")]
    arms = ScriptedArms({"stable": [says(1)]})
    received = answer(arms, ("stable",))
    assert received.ids == [1] and isinstance(received.error, EngineFailedError)
    error = received.error
    assert "stable" in error.what and error.values and error.limit and error.remedy


@pytest.mark.parametrize("after", [[DOWN], [9.0], [CANCELLED_FROM_WITHIN], [says(3)]])
def test_what_an_arm_does_after_its_last_chunk_is_of_no_concern(after: list[Step]) -> None:
    arms = ScriptedArms({"candidate": [says(1), ends(2), *after], "stable": [ends(1, 2)]})
    received = answer(arms)
    assert received.is_whole and received.times_s == [0.0, 0.0]
    assert arms.outcomes == [("candidate", "answered")]
    assert arms.closed == [("candidate", 0.0)]


def test_if_no_arm_answers_the_client_hears_of_the_last_one_or_that_it_may_try_again() -> None:
    last = EngineFailedError("control is down")
    arms = ScriptedArms({"candidate": [OSError()], "stable": [DOWN], "control": [last]})
    assert answer(arms).error is last
    arms = ScriptedArms({"candidate": [DOWN], "stable": [BUSY], "control": [last]})
    assert answer(arms).error is BUSY


@pytest.mark.parametrize(
    "error", [RequestTimeoutError("late"), RequestCancelledError("left"), InvalidRequestError("invalid")]
)
@pytest.mark.parametrize("before", [[], [says(1)]])
def test_a_clients_own_errors_are_not_retried_on_another_arm(error: Exception, before: list[Step]) -> None:
    arms = ScriptedArms({"stable": [*before, error], "control": [ends(1)]})
    received = answer(arms, ("stable", "control"))
    assert received.error is error
    assert [arm for arm, _ in arms.asked] == ["stable"]
    assert arms.outcomes == [("stable", "refused" if isinstance(error, InvalidRequestError) else "cancelled")]


def test_a_deadline_that_passes_while_two_arms_run_ends_both() -> None:
    late = RequestTimeoutError("late")
    arms = ScriptedArms({"candidate": [SLOW_S + 1, late], "stable": [FOR_EVER_S], "control": [ends(1)]})
    assert answer(arms).error is late
    assert arms.outcomes == [("candidate", "cancelled"), ("stable", "cancelled")]
    assert sorted(arms.closed) == [("candidate", SLOW_S + 1), ("stable", SLOW_S + 1)]


def test_what_the_candidate_alone_refuses_is_answered_and_what_others_refuse_too_is_not() -> None:
    too_long = PromptTooLongError("too long for the candidate")
    arms = ScriptedArms({"candidate": [too_long], "stable": [ends(1)]})
    assert answer(arms, ("candidate", "stable")).ids == [1]
    assert arms.outcomes == [("candidate", "refused"), ("stable", "answered")]
    invalid = InvalidRequestError("invalid")
    arms = ScriptedArms({"candidate": [too_long], "stable": [invalid], "control": [ends(1)]})
    assert answer(arms).error is invalid
    assert arms.outcomes == [("candidate", "refused"), ("stable", "refused")]
    arms = ScriptedArms({"candidate": [too_long]})
    assert answer(arms, ("candidate",)).error is too_long


def test_a_broken_stream_is_resumed_by_another_arm() -> None:
    arms = ScriptedArms(
        {
            "candidate": [says(1, 2), says(3), 1.0, DOWN],
            "stable": [says(1), 0.5, says(2, 3, 4, 5), ends(6)],
        }
    )
    received = answer(arms)
    assert received.chunks == [
        ("candidate", says(1, 2)),
        ("candidate", says(3)),
        ("stable", says(4, 5)),
        ("stable", ends(6)),
    ]
    assert arms.outcomes == [("candidate", "error"), ("stable", "answered")]


@pytest.mark.parametrize("other", [[says(1, 9), ends(3)], [ends(9)], [ends(1)], [says(1), ends()]])
def test_an_arm_that_would_have_said_something_else_goes_on_with_what_the_client_has(
    other: list[Step],
) -> None:
    arms = ScriptedArms(
        {"candidate": [says(1), says(2), DOWN], "stable": other, "control": [ends(1, 2, 3)]},
        later={"stable": lambda num_tokens: [0.5, says(7), ends(8)]},
    )
    received = answer(arms)
    assert received.is_whole and received.ids == [1, 2, 7, 8]
    assert arms.given == [("stable", (1, 2), says(2))]
    assert arms.outcomes == [("candidate", "error"), ("stable", "differs"), ("stable", "answered")]


def test_once_an_arm_differs_the_next_one_is_not_asked_from_the_start() -> None:
    arms = ScriptedArms(
        {"candidate": [says(1, 2), DOWN], "stable": [ends(9)], "control": [ends(1, 2, 3)]},
        later={"stable": lambda num_tokens: [says(7), BUSY], "control": lambda num_tokens: [ends(8)]},
    )
    received = answer(arms)
    assert received.is_whole and received.ids == [1, 2, 7, 8]
    assert arms.given == [("stable", (1, 2), says(1, 2)), ("control", (1, 2, 7), says(7))]


def test_if_no_arm_can_resume_the_client_gets_the_failure_that_broke_its_answer() -> None:
    arms = ScriptedArms(
        {"candidate": [says(1, 2), DOWN], "stable": [ends(9)], "control": [ends(9)]},
        later={"stable": lambda num_tokens: [OSError()], "control": lambda num_tokens: [KeyError()]},
    )
    received = answer(arms)
    assert received.ids == [1, 2] and received.error is DOWN
    assert [arm for arm, _, _ in arms.given] == ["stable", "control"]


def test_the_failure_of_the_arm_that_gave_the_tokens_is_what_the_client_hears_of() -> None:
    arms = ScriptedArms({"candidate": [BUSY], "stable": [says(1), DOWN], "control": [OSError()]})
    assert answer(arms).error is DOWN


def test_an_arm_without_a_first_token_in_time_is_overtaken_and_cancelled() -> None:
    arms = ScriptedArms({"candidate": [FOR_EVER_S], "stable": [0.5, says(1), 0.25, ends(2)]})
    received = answer(arms)
    assert received.ids == [1, 2] and received.times_s == [SLOW_S + 0.5, SLOW_S + 0.75]
    assert arms.asked == [("candidate", 0.0), ("stable", SLOW_S)]
    assert arms.outcomes == [("candidate", "timeout"), ("stable", "answered")]
    assert arms.closed[0] == ("candidate", SLOW_S + 0.5)


def test_an_arm_that_is_late_and_still_first_goes_on_and_its_helper_is_cancelled() -> None:
    arms = ScriptedArms({"candidate": [SLOW_S + 0.25, says(1), 1.0, ends(2)], "stable": [0.5, ends(1, 2)]})
    received = answer(arms)
    assert received.ids == [1, 2] and set(received.arms) == {"candidate"}
    assert arms.outcomes == [("stable", "cancelled"), ("candidate", "answered")]
    assert arms.closed[0] == ("stable", SLOW_S + 0.25)


def test_a_helper_that_was_not_needed_can_be_asked_again() -> None:
    arms = ScriptedArms({"candidate": [SLOW_S + 0.25, says(1), DOWN], "stable": [0.5, ends(1, 2)]})
    received = answer(arms, ("candidate", "stable"))
    assert received.is_whole and received.ids == [1, 2]
    assert arms.outcomes == [("stable", "cancelled"), ("candidate", "error"), ("stable", "answered")]


def test_a_late_arm_is_asked_again_if_all_others_fail() -> None:
    arms = ScriptedArms(
        {"candidate": [3.0, ends(1, 2)], "stable": [0.5, says(1), 0.5, DOWN], "control": [0.25, DOWN]}
    )
    received = answer(arms)
    assert received.is_whole and received.ids == [1, 2] and received.arms == ["stable", "candidate"]
    assert [arm for arm, _ in arms.asked] == ["candidate", "stable", "control", "candidate"]
    assert arms.outcomes[0] == ("candidate", "timeout") and arms.outcomes[-1] == ("candidate", "answered")


def test_an_arm_that_fails_while_its_helper_runs_calls_no_second_one() -> None:
    arms = ScriptedArms({"candidate": [SLOW_S + 0.5, DOWN], "stable": [1.0, ends(1)], "control": [ends(1)]})
    received = answer(arms)
    assert received.arms == ["stable"] and received.times_s == [SLOW_S + 1.0]
    assert [arm for arm, _ in arms.asked] == ["candidate", "stable"]


def test_a_helper_that_fails_calls_the_next_one_and_the_late_arm_may_still_be_first() -> None:
    arms = ScriptedArms({"candidate": [SLOW_S + 1, ends(1)], "stable": [0.25, DOWN], "control": [FOR_EVER_S]})
    received = answer(arms)
    assert received.arms == ["candidate"] and received.times_s == [SLOW_S + 1]
    assert arms.asked == [("candidate", 0.0), ("stable", SLOW_S), ("control", SLOW_S + 0.25)]
    assert arms.outcomes == [("stable", "error"), ("control", "cancelled"), ("candidate", "answered")]


def test_where_every_arm_is_slow_each_is_asked_once_and_the_first_token_wins() -> None:
    arms = ScriptedArms({"candidate": [FOR_EVER_S], "stable": [9.0, ends(1)], "control": [FOR_EVER_S]})
    assert answer(arms).times_s == [SLOW_S + 9.0]
    assert arms.asked == [("candidate", 0.0), ("stable", SLOW_S), ("control", 2 * SLOW_S)]
    assert Counter(arms.outcomes) == Counter(
        [("candidate", "timeout"), ("control", "cancelled"), ("stable", "answered")]
    )


def test_a_stalled_stream_moves_to_another_arm_once_that_is_ahead() -> None:
    arms = ScriptedArms(
        {"candidate": [says(1, 2), FOR_EVER_S], "stable": [says(1), 1.0, says(2), 1.0, says(3), ends(4)]}
    )
    received = answer(arms)
    assert received.is_whole and received.ids == [1, 2, 3, 4]
    assert received.times_s == [0.0, SLOW_S + 2, SLOW_S + 2]
    assert arms.outcomes == [("candidate", "timeout"), ("stable", "answered")]


def test_a_stream_that_stalls_and_comes_back_goes_on_itself_however_often() -> None:
    stalling: list[Step] = [says(1), 3.0, says(2), 3.0, says(3), 3.0, ends(4)]
    arms = ScriptedArms({"candidate": stalling, "stable": [says(1), FOR_EVER_S]})
    received = answer(arms, ("candidate", "stable"))
    assert received.is_whole and received.ids == [1, 2, 3, 4] and set(received.arms) == {"candidate"}
    assert arms.outcomes == [("stable", "cancelled")] * 3 + [("candidate", "answered")]


def test_a_client_that_waits_for_the_whole_answer_has_that_of_one_arm_whatever_others_began_to_say() -> None:
    for failing in ([says(1, 9), DOWN], [says(1, 9), FOR_EVER_S]):
        arms = ScriptedArms({"candidate": failing, "stable": [says(1), 1.0, says(2, 3), 0.5, ends(4)]})
        received = answer(arms, streaming=False)
        assert received.is_whole and received.ids == [1, 2, 3, 4] and set(received.arms) == {"stable"}
        assert set(received.times_s) == {1.5 if failing[-1] is DOWN else SLOW_S + 1.5}
        assert [outcome for _, outcome in arms.outcomes] == [
            "error" if failing[-1] is DOWN else "timeout",
            "answered",
        ]


def test_a_helper_must_be_ahead_to_replace_a_whole_answer_that_stalls() -> None:
    arms = ScriptedArms({"candidate": [says(1, 2), 3.0, ends(3)], "stable": [says(8), says(9), FOR_EVER_S]})
    received = answer(arms, streaming=False)
    assert received.ids == [1, 2, 3] and set(received.arms) == {"candidate"}
    assert arms.outcomes == [("stable", "cancelled"), ("candidate", "answered")]


def test_without_streaming_a_failure_after_some_tokens_is_like_one_before_them() -> None:
    arms = ScriptedArms({"candidate": [says(1), BUSY], "stable": [says(1), DOWN], "control": [OSError()]})
    received = answer(arms, streaming=False)
    assert received.chunks == [] and received.error is BUSY


def test_an_arm_that_diverges_does_not_end_the_stream_that_it_was_to_help() -> None:
    arms = ScriptedArms(
        {"candidate": [says(1), 2.5, ends(2)], "stable": [ends(8)]},
        later={"stable": lambda num_tokens: [1.0, ends(9)]},
    )
    received = answer(arms)
    assert received.is_whole and received.ids == [1, 2] and set(received.arms) == {"candidate"}
    assert arms.outcomes == [("stable", "differs"), ("stable", "cancelled"), ("candidate", "answered")]


def test_an_arm_that_diverges_takes_a_stream_over_that_stalls() -> None:
    arms = ScriptedArms(
        {"candidate": [says(1), FOR_EVER_S], "stable": [ends(8)]},
        later={"stable": lambda num_tokens: [1.0, ends(9)]},
    )
    received = answer(arms)
    assert received.is_whole and received.ids == [1, 9] and received.times_s == [0.0, SLOW_S + 1]
    assert arms.outcomes == [("stable", "differs"), ("candidate", "timeout"), ("stable", "answered")]


def test_an_arm_that_may_not_be_helped_is_waited_for_and_one_that_fails_is_replaced_all_the_same() -> None:
    arms = ScriptedArms({"stable": [50.0, ends(1)], "control": [ends(1)]}, hedges=lambda arm: False)
    assert answer(arms, ("stable", "control")).times_s == [50.0]
    assert arms.outcomes == [("stable", "answered")]
    arms = ScriptedArms({"stable": [50.0, DOWN], "control": [ends(1)]}, hedges=lambda arm: False)
    assert answer(arms, ("stable", "control")).arms == ["control"]


def test_leave_to_help_is_asked_again_as_long_as_the_arm_is_silent() -> None:
    leave = iter([False, False, True])
    arms = ScriptedArms({"stable": [FOR_EVER_S], "control": [ends(1)]}, hedges=lambda arm: next(leave))
    assert answer(arms, ("stable", "control")).times_s == [3 * SLOW_S]


def test_a_client_that_reads_slowly_is_no_arm_that_answers_slowly() -> None:
    arms = ScriptedArms({"candidate": [says(1), says(2), 1.5, ends(3)], "stable": [ends(1, 2, 3)]})
    received = answer(arms, pause_s=10.0)
    assert received.is_whole and received.ids == [1, 2, 3]
    assert arms.outcomes == [("candidate", "answered")]


@pytest.mark.parametrize("after_s", [0.001, 1.0, SLOW_S + 1, SLOW_S + 3.5])
def test_a_client_that_leaves_takes_every_arm_with_it(after_s: float) -> None:
    arms = ScriptedArms({"candidate": [FOR_EVER_S], "stable": [2.0, says(1), FOR_EVER_S], "control": []})

    async def leave() -> None:
        asking = asyncio.ensure_future(receive(arms, ("candidate", "stable")))
        await asyncio.sleep(after_s)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    run(leave())
    assert Counter(arm for arm, _ in arms.asked) == Counter(arm for arm, _ in arms.outcomes)
    assert ("candidate", "timeout" if after_s > SLOW_S + 2 else "cancelled") in arms.outcomes
    assert {outcome for arm, outcome in arms.outcomes if arm == "stable"} <= {"cancelled"}
    assert {arm for arm, _ in arms.closed} == {arm for arm, _ in arms.asked}


def test_every_arm_is_closed_when_an_answer_was_read_to_its_end() -> None:
    closed: list[Arm] = []

    class SlowToClose(ScriptedArms):
        async def ask(self, arm: Arm) -> AsyncGenerator[Chunk, None]:
            try:
                async for chunk in super().ask(arm):
                    yield chunk
            finally:
                if arm == "candidate":
                    await asyncio.sleep(5.0)
                closed.append(arm)

    received = answer(SlowToClose({"candidate": [FOR_EVER_S], "stable": [says(1), ends(2)]}))
    assert received.times_s == [SLOW_S, SLOW_S]  # the client does not wait for that
    assert sorted(closed) == ["candidate", "stable"]


def test_an_answer_that_is_closed_halfway_cancels_its_arm() -> None:
    arms = ScriptedArms({"stable": [says(1), says(2), FOR_EVER_S]})

    async def take_one() -> None:
        async with aclosing(answer_over(("stable",), arms, SLOW_S)) as chunks:
            async for _ in chunks:
                break

    run(take_one())
    assert arms.outcomes == [("stable", "cancelled")] and len(arms.closed) == 1
