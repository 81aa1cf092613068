"""Tests of requests whose arms have no process for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

import pytest

from pipelines.errors import EngineFailedError, ProcessEndedError, RequestTimeoutError, ServerBusyError
from pipelines.router.arms import Arm
from pipelines.router.failover import RETURNS_WITHIN_S
from pipelines.triton.supervision.supervisor import RELOAD_TIMEOUT_S
from tests.unit.router.scripted_arms import BUSY, DOWN, Chunk, ScriptedArms, Step, answer, ends, says

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
