"""Replays requests of the stable arm on the candidate, within the limits of the table of arms.

Who is asked again, and what the answer must equal, the request itself says (``Replayed``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from pipelines.router.arms import Arm, ArmTable, LiveArms, ShadowSetting
from pipelines.router.choice import point
from pipelines.router.observation import Observation, unix_time_s
from pipelines.router.received_answer import ReceivedAnswer, with_answer, with_comparison

_LOG = logging.getLogger(__name__)

Note = Callable[[int, Observation, bool], None]


class Replayed(Protocol):
    """A request that the stable arm has answered."""

    @property
    def replay_arms(self) -> tuple[Arm, ...]:
        """The arms that a replay asks, none for no replay; the last one's observation is recorded first."""

    @property
    def prompt(self) -> str:
        """Its prompt as text."""

    @property
    def received(self) -> ReceivedAnswer:
        """The answer that the client got."""

    async def repeat(self, table: ArmTable, arm: Arm) -> ReceivedAnswer | None:
        """Ask an arm of the current table again; None if it is not to blame for giving no answer."""

    async def expected(self, table: ArmTable) -> ReceivedAnswer | None:
        """Return what the answer to a replay must equal; None if it need not equal anything."""


class ShadowTraffic:
    """Replays requests in the background. Runs on a single event loop.

    Attributes:
        num_begun: Replays started so far.
        num_dropped: Requests dropped from the queue.

    Args:
        arms: The table of arms, whose limits are read for each replay. Without limits none begins, and the
            queue is emptied.
        begin: Counts a replay as in flight; returns its number and the time.
        note: Receives the number and the observation of each replay, and whether it is judged: not if no arm
            is to blame for its end.
    """

    def __init__(self, arms: LiveArms, begin: Callable[[], tuple[int, float]], note: Note) -> None:
        self.num_begun = 0
        self.num_dropped = 0
        self._arms = arms
        self._begin = begin
        self._note = note
        self._waiting: deque[tuple[Replayed, Observation]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._begun_at_s = float("-inf")  # start of the latest replay
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def offer(self, call: Replayed, observation: Observation, table: ArmTable) -> None:
        """Queue an answered request, if it is one of the share that is replayed.

        Args:
            call: The request.
            observation: What was seen of its answer.
            table: The table of arms when it arrived.
        """
        setting = table.shadow
        if setting is None or observation.overridden or observation.failure or not call.replay_arms:
            return
        if is_replayed(setting, table.salt, observation.request_id):
            self._waiting.append((call, observation))
            self._begin_replays()

    async def close(self) -> None:
        """Empty the queue, cancel running replays and wait until they have ended."""
        self._is_closed = True
        self._begin_replays()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _limits(self) -> ShadowSetting | None:
        return None if self._is_closed else self._arms.read().shadow_at(unix_time_s())

    def _begin_replays(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        limits = self._limits()
        if limits is None:
            self._drop_until(0)
            return
        loop = asyncio.get_running_loop()
        while self._waiting and len(self._running) < limits.max_in_flight:
            wait_s = self._begun_at_s + 1 / limits.max_per_s - loop.time()
            if wait_s > 0:
                self._timer = loop.call_later(wait_s, self._begin_replays)
                break
            self._begun_at_s = loop.time()
            self.num_begun += 1
            task = loop.create_task(self._run(*self._waiting.popleft()))
            self._running.add(task)
            task.add_done_callback(self._end)
        self._drop_until(limits.max_queue)

    def _drop_until(self, num_left: int) -> None:
        while len(self._waiting) > num_left:
            self._waiting.popleft()
            self.num_dropped += 1

    def _end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._begin_replays()

    async def _run(self, call: Replayed, before: Observation) -> None:
        try:
            await self._replay(call, before)
        except Exception:  # an error in one replay must not end the others
            _LOG.exception("a replay failed")

    async def _replay(self, call: Replayed, before: Observation) -> None:
        table = self._arms.read()
        if not table.candidate or table.canary_id != before.canary_id:
            return
        numbers: dict[Arm, int] = {}
        begun: dict[Arm, Observation] = {}
        for arm in call.replay_arms:
            numbers[arm], arrived_at_s = self._begin()
            begun[arm] = Observation(
                canary_id=table.canary_id,
                request_id=before.request_id,
                arm=arm,
                arrived_at_s=arrived_at_s,
                oldest_open_at_s=arrived_at_s,
                band=before.band,
                is_replay=True,
                prompt_id=before.prompt_id,
                session_id=before.session_id,
            )
        seen: dict[Arm, Observation | None] = {}
        try:
            repeated = await asyncio.gather(*(_repeat(call, table, each) for each in begun.values()))
            seen.update(zip(begun, repeated, strict=True))
        finally:
            has_failed = any(each is not None and each.failure for each in seen.values())
            for arm in reversed(begun):
                observation = seen.get(arm)
                if observation is not None and has_failed:  # two answers are judged together or not at all
                    observation = replace(observation, answer="", differs_in="", divergence=None)
                self._note(numbers[arm], observation or begun[arm], observation is not None)


async def _repeat(call: Replayed, table: ArmTable, begun: Observation) -> Observation | None:
    """Ask an arm again, and compare its answer with the expected one."""
    answer = await call.repeat(table, begun.arm)
    if answer is None:
        return None
    if answer.fault:
        return with_answer(begun, answer)
    observation = replace(with_answer(begun, answer), e2e_latency_s=unix_time_s() - begun.arrived_at_s)
    if observation.drafted_per_round:
        observation = replace(observation, num_common_tokens=answer.num_common(call.received))
    expected = await call.expected(table)
    if expected is None:
        return observation
    if expected.fault:  # of the candidate's own target
        return with_answer(observation, expected)
    compared = with_comparison(observation, call.prompt, table.replays_match, expected, answer)
    return compared if begun.arm == "candidate" else replace(compared, divergence=None)


def is_replayed(setting: ShadowSetting, salt: str, request_id: str) -> bool:
    """Whether the candidate replays a request; independent of all other requests."""
    return point(salt, request_id, "shadow") < setting.share
