"""Tests of one answer over several arms that fail, stall, refuse, diverge, or have no process for a while."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

import pytest

from pipelines.errors import (
    EngineFailedError,
    InvalidRequestError,
    ProcessEndedError,
    PromptTooLongError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerBusyError,
    TransportError,
)
from pipelines.router.arms import Arm
from pipelines.router.breaker import Outcome
from pipelines.router.failover import RETURNS_WITHIN_S
from pipelines.triton.supervision.supervisor import RELOAD_TIMEOUT_S
from tests.unit.router.scripted_arms import (
    ALL,
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


@dataclass(frozen=True)
class Race:
    """Scripts of arms, and the result: each text lists arms with their times or outcomes."""

    scripts: dict[Arm, list[Step]]
    received: str
    outcomes: str
    asked: str = ""
    streaming: bool = True


RACES = {
    "an arm that answers is passed on, and no other is asked": Race(
        {"candidate": [1.0, says(1, 2), 1.9, says(3), ends()], "stable": [ends(9)]},
        "candidate 1,2 at 1; candidate 3 at 2.9; candidate at 2.9",
        "candidate answered",
    ),
    "an answer without a token is an answer": Race(
        {"candidate": [ends()], "stable": [ends(1)]}, "candidate at 0", "candidate answered"
    ),
    "a broken stream is resumed by another arm": Race(
        {"candidate": [says(1, 2), says(3), 1.0, DOWN], "stable": [says(1), 0.5, says(2, 3, 4, 5), ends(6)]},
        "candidate 1,2 at 0; candidate 3 at 0; stable 4,5 at 1; stable 6 at 1",
        "candidate error; stable answered",
    ),
    "an arm without a first token in time is overtaken and cancelled": Race(
        {"candidate": [FOR_EVER_S], "stable": [0.5, says(1), 0.25, ends(2)]},
        "stable 1 at 2.5; stable 2 at 2.75",
        "candidate timeout; stable answered",
        asked="candidate at 0; stable at 2",
    ),
    "an arm that is late and still first goes on, and its helper is cancelled": Race(
        {"candidate": [2.25, says(1), 1.0, ends(2)], "stable": [0.5, ends(1, 2)]},
        "candidate 1 at 2.25; candidate 2 at 3.25",
        "stable cancelled; candidate answered",
    ),
    "a helper that was not needed can be asked again": Race(
        {"candidate": [2.25, says(1), DOWN], "stable": [0.5, ends(1, 2)]},
        "candidate 1 at 2.25; stable 2 at 2.25",
        "stable cancelled; candidate error; stable answered",
    ),
    "a late arm is asked again if all others fail": Race(
        {"candidate": [3.0, ends(1, 2)], "stable": [0.5, says(1), 0.5, DOWN], "control": [0.25, DOWN]},
        "stable 1 at 2.5; candidate 2 at 3",
        "candidate timeout; stable error; control error; candidate answered",
        asked="candidate at 0; stable at 2; control at 3; candidate at 3",
    ),
    "an arm that fails while its helper runs calls no second one": Race(
        {"candidate": [2.5, DOWN], "stable": [1.0, ends(1)], "control": [ends(1)]},
        "stable 1 at 3",
        "candidate error; stable answered",
        asked="candidate at 0; stable at 2",
    ),
    "a helper that fails calls the next one, and the late arm may still be first": Race(
        {"candidate": [3.0, ends(1)], "stable": [0.25, DOWN], "control": [FOR_EVER_S]},
        "candidate 1 at 3",
        "stable error; control cancelled; candidate answered",
        asked="candidate at 0; stable at 2; control at 2.25",
    ),
    "where every arm is slow each is asked once, and the first token wins": Race(
        {"candidate": [FOR_EVER_S], "stable": [9.0, ends(1)], "control": [FOR_EVER_S]},
        "stable 1 at 11",
        "candidate timeout; control cancelled; stable answered",
        asked="candidate at 0; stable at 2; control at 4",
    ),
    "a stalled stream moves to another arm once that is ahead": Race(
        {"candidate": [says(1, 2), FOR_EVER_S], "stable": [says(1, 2), 1.0, says(3), ends(4)]},
        "candidate 1,2 at 0; stable 3 at 3; stable 4 at 3",
        "candidate timeout; stable answered",
    ),
    "a stream that stalls and comes back goes on itself, however often": Race(
        {"candidate": [says(1), 3.0, says(2), 3.0, says(3), 3.0, ends(4)], "stable": [says(1), FOR_EVER_S]},
        "candidate 1 at 0; candidate 2 at 3; candidate 3 at 6; candidate 4 at 9",
        "stable cancelled; stable cancelled; stable cancelled; candidate answered",
    ),
    "a whole answer is that of one arm, though another began and failed": Race(
        {"candidate": [says(1, 9), DOWN], "stable": [says(1), 1.0, says(2, 3), 0.5, ends(4)]},
        "stable 1 at 1.5; stable 2,3 at 1.5; stable 4 at 1.5",
        "candidate error; stable answered",
        streaming=False,
    ),
    "a whole answer is that of one arm, though another began and stalls": Race(
        {"candidate": [says(1, 9), FOR_EVER_S], "stable": [says(1), 1.0, says(2, 3), 0.5, ends(4)]},
        "stable 1 at 3.5; stable 2,3 at 3.5; stable 4 at 3.5",
        "candidate timeout; stable answered",
        streaming=False,
    ),
    "a helper must end to replace a whole answer that stalls": Race(
        {"candidate": [says(1, 2), 3.0, ends(3)], "stable": [says(7, 8, 9), FOR_EVER_S]},
        "candidate 1,2 at 3; candidate 3 at 3",
        "stable cancelled; candidate answered",
        streaming=False,
    ),
}


@pytest.mark.parametrize("race", RACES.values(), ids=RACES)
def test_the_client_has_one_whole_answer_from_whom_and_when(race: Race) -> None:
    arms = ScriptedArms(race.scripts)
    received = answer(arms, tuple(arm for arm in ALL if arm in race.scripts), streaming=race.streaming)
    assert received.is_whole
    chunks = [
        " ".join(filter(None, (arm, ",".join(map(str, chunk.ids)), f"at {at_s:g}")))
        for (arm, chunk), at_s in zip(received.chunks, received.times_s, strict=True)
    ]
    assert "; ".join(chunks) == race.received
    assert "; ".join(map(" ".join, arms.outcomes)) == race.outcomes
    if race.asked:
        assert "; ".join(f"{arm} at {at_s:g}" for arm, at_s in arms.asked) == race.asked
    assert sorted(arm for arm, _ in arms.closed) == sorted(arm for arm, _ in arms.asked)


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
def test_an_arm_failing_before_its_first_token_is_replaced_at_once(
    error: Exception, outcome: Outcome
) -> None:
    arms = ScriptedArms({"candidate": [0.5, error], "stable": [error], "control": [says(1), ends(2)]})
    received = answer(arms)
    assert received.is_whole and received.ids == [1, 2] and set(received.arms) == {"control"}
    assert received.times_s == [0.5, 0.5]
    assert arms.outcomes == [("candidate", outcome), ("stable", outcome), ("control", "answered")]


def test_an_arm_that_ends_without_a_word_has_failed() -> None:
    arms = ScriptedArms({"candidate": [], "stable": [CANCELLED_FROM_WITHIN], "control": [ends(1)]})
    assert answer(arms).ids == [1]
    assert arms.outcomes == [("candidate", "error"), ("stable", "error"), ("control", "answered")]
    arms = ScriptedArms({"stable": [says(1)]})
    received = answer(arms, ("stable",))
    assert received.ids == [1] and isinstance(received.error, EngineFailedError)
    assert "stable" in received.error.message and received.error.remedy


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


def test_if_no_arm_can_resume_the_client_gets_the_failure_that_broke_its_answer() -> None:
    arms = ScriptedArms({"candidate": [says(1, 2), DOWN], "stable": [OSError()], "control": [KeyError()]})
    received = answer(arms)
    assert received.ids == [1, 2] and received.error is DOWN
    assert arms.given == [("stable", (1, 2)), ("control", (1, 2))]


def test_without_streaming_a_failure_after_some_tokens_is_like_one_before_them() -> None:
    arms = ScriptedArms({"candidate": [says(1), BUSY], "stable": [says(1), DOWN], "control": [OSError()]})
    received = answer(arms, streaming=False)
    assert received.chunks == [] and received.error is BUSY


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


GONE = ProcessEndedError("gone")
TAKEN = ProcessEndedError("gone, with the request")
TAKEN.took_request = True
PAIR: tuple[Arm, ...] = ("stable", "control")


@dataclass
class ArmsThatReturn(ScriptedArms):
    """Arms of one process, which is gone from its first end on until ``back_s``, and then well."""

    back_s: float = 0.0
    was_gone: bool = False

    async def _follow(self, arm: Arm, steps: Sequence[Step]) -> AsyncGenerator[Chunk, None]:
        is_gone = self.was_gone and asyncio.get_running_loop().time() < self.back_s
        script = [GONE] if is_gone else [step for step in steps if not (self.was_gone and step is GONE)]
        self.was_gone |= GONE in script
        async for chunk in super()._follow(arm, script):
            yield chunk


class ArmsWithLives(ScriptedArms):
    """A stable pair whose next process follows the next script, whatever the client has."""

    def __init__(self, *lives: Sequence[Step]) -> None:
        super().__init__({}, hedges=lambda arm: False)
        self._lives = iter(lives)

    def ask(self, arm: Arm) -> AsyncGenerator[Chunk, None]:
        return self._follow(arm, next(self._lives))


@pytest.mark.parametrize("streaming", [True, False])
def test_a_request_waits_for_the_process_of_its_only_arms(streaming: bool) -> None:
    steps = [1.0, GONE, says(1), ends(2)]
    arms = ArmsThatReturn({"stable": steps, "control": steps}, back_s=9.0)
    received = answer(arms, PAIR, streaming=streaming)
    assert received.is_whole and received.ids == [1, 2]
    assert 10.0 <= received.times_s[-1] < 10.5


def test_a_stream_continues_after_the_tokens_that_the_client_has() -> None:
    arms = ArmsThatReturn({arm: [says(1, 2), 0.5, GONE, says(3), ends()] for arm in PAIR}, back_s=3.0)
    received = answer(arms, PAIR)
    assert received.is_whole and received.ids == [1, 2, 3]
    assert {given for _, given in arms.given} == {(1, 2)}, "nothing is decoded a second time"


def test_a_process_that_does_not_return_ends_the_request() -> None:
    arms = ArmsThatReturn({arm: [says(1), GONE] for arm in PAIR}, back_s=1e6)
    received = answer(arms, PAIR)
    assert received.error is GONE and received.ids == [1]
    assert RETURNS_WITHIN_S - 1 < arms.closed[-1][1] <= RETURNS_WITHIN_S
    assert len(arms.asked) < 2 * RETURNS_WITHIN_S / 0.1, "it is not asked without pause"


def test_a_request_waits_as_long_as_the_gateway_tries_to_replace_its_process() -> None:
    assert RETURNS_WITHIN_S == RELOAD_TIMEOUT_S


def test_each_end_of_a_process_is_waited_for_anew() -> None:
    long = RETURNS_WITHIN_S - 1
    arms = ArmsWithLives([says(1), GONE], [long, GONE], [says(2), GONE], [long, GONE], [ends(3)])
    received = answer(arms, ("stable",))
    assert received.is_whole and received.ids == [1, 2, 3]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("begin", [[says(1), GONE], [TAKEN]])
def test_a_request_that_ends_each_process_that_takes_it_is_given_up(
    begin: list[Step], streaming: bool
) -> None:
    """Otherwise it would be repeated for a minute, and all others would lose their process each time."""
    arms = ArmsWithLives(*[begin] * 9)
    received = answer(arms, ("stable",), streaming=streaming)
    assert received.error is begin[-1] and len(arms.asked) == 3


@pytest.mark.parametrize(
    ("control", "raised"),
    [
        (DOWN, EngineFailedError),
        (BUSY, ServerBusyError),  # the client may try again later, which is better than to wait
    ],
)
def test_nobody_waits_for_an_arm_that_failed_or_is_busy(control: Exception, raised: type[Exception]) -> None:
    arms = ScriptedArms({"stable": [GONE if control is BUSY else DOWN], "control": [control]})
    assert type(answer(arms, PAIR).error) is raised
    assert len(arms.asked) == 2


def test_another_arm_is_asked_before_anybody_waits() -> None:
    arms = ScriptedArms({"candidate": [says(1), GONE], "stable": [GONE], "control": [says(1), ends(2)]})
    received = answer(arms)
    assert received.is_whole and received.ids == [1, 2] and received.times_s[-1] == 0.0


def test_a_deadline_that_passes_while_it_waits_ends_the_request() -> None:
    late = RequestTimeoutError("late")
    assert answer(ArmsWithLives([GONE], [GONE], [late]), ("stable",)).error is late


def test_a_request_that_was_accepted_waits_for_a_place_in_the_queue_of_the_new_process() -> None:
    """All that waited come back at the same time."""
    received = answer(ArmsWithLives([says(1), GONE], [GONE], [BUSY], [BUSY], [ends(2)]), ("stable",))
    assert received.is_whole and received.ids == [1, 2]


@pytest.mark.parametrize("streaming", [True, False])
def test_a_queue_that_stays_full_ends_it_with_the_error_of_its_process(streaming: bool) -> None:
    arms = ArmsWithLives([says(1), GONE], *[[BUSY]] * 1000)
    assert answer(arms, ("stable",), streaming=streaming).error is GONE


def test_waiting_counts_once_against_each_arm() -> None:
    """Otherwise the breakers would stay open for a minute after the process is back."""
    arms = ArmsThatReturn({arm: [GONE, says(1), ends(2)] for arm in PAIR}, back_s=9.0)
    assert answer(arms, PAIR).is_whole
    failures = [arm for arm, outcome in arms.outcomes if outcome == "error"]
    assert sorted(failures) == ["control", "stable"]
    assert {outcome for _, outcome in arms.outcomes} <= {"error", "unreached", "answered", "cancelled"}
