"""Replays requests of the stable pair on the candidate and compares the answers.

A candidate with the stable pair's target must give the same answer. A candidate with another target, such as
one with another quantization, is compared with its own target: it answers twice with the same seed, with and
without drafting. Replays are streamed like all requests of the router.

"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from pipelines.errors import DraftproofError
from pipelines.router.arms import ArmTable, LiveArms, ShadowSetting
from pipelines.router.choice import point
from pipelines.router.observation import Observation
from pipelines.router.open_requests import OpenRequests, unix_time_s
from pipelines.router.received_answer import (
    ReceivedAnswer,
    failure_of,
    is_comparable,
    num_common_tokens,
    with_answer,
    with_chunk_check,
    with_comparison,
)
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.calls import Call, stream
from pipelines.wire.tensors import scalar_tensor

_LOG = logging.getLogger(__name__)

Item = TypeVar("Item")


def is_replayed(setting: ShadowSetting, salt: str, request_id: str) -> bool:
    """Whether the candidate replays a request; independent of all other requests."""
    return point(salt, request_id, "shadow") < setting.share


class ReplayQueue(Generic[Item]):
    """Replays requests in the background on the event loop that created it.

    Attributes:
        num_begun: Replays started so far.
        num_dropped: Requests dropped from the queue.

    Args:
        setting: Returns the current limits. None stops replays and empties the queue.
        replay: Replays one request and records the result. Cancelled by ``close``.
    """

    def __init__(
        self, setting: Callable[[], ShadowSetting | None], replay: Callable[[Item], Awaitable[None]]
    ) -> None:
        self.num_begun = 0
        self.num_dropped = 0
        self._setting = setting
        self._replay = replay
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Item] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._begun_at_s = float("-inf")  # start of the latest replay
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def offer(self, item: Item) -> None:
        """Add a request to the queue."""
        self._waiting.append(item)
        self._begin_replays()

    async def close(self) -> None:
        """Empty the queue, cancel running replays and wait until they have ended."""
        self._is_closed = True
        self._begin_replays()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _begin_replays(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        setting = None if self._is_closed else self._setting()
        if setting is None:
            self._drop_until(0)
            return
        while self._waiting and len(self._running) < setting.max_in_flight:
            wait_s = self._begun_at_s + 1 / setting.max_per_s - self._loop.time()
            if wait_s > 0:
                self._timer = self._loop.call_later(wait_s, self._begin_replays)
                break
            self._begun_at_s = self._loop.time()
            self.num_begun += 1
            task = self._loop.create_task(self._run(self._waiting.popleft()))
            self._running.add(task)
            task.add_done_callback(self._end)
        self._drop_until(setting.max_queue)

    def _drop_until(self, num_left: int) -> None:
        while len(self._waiting) > num_left:
            self._waiting.popleft()
            self.num_dropped += 1

    def _end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._begin_replays()

    async def _run(self, item: Item) -> None:
        try:
            await self._replay(item)
        except Exception:  # an error in one replay must not end the others
            _LOG.exception("a replay failed")


class Note(Protocol):
    """Records the observation of a request that ended."""

    def __call__(self, number: int, observation: Observation, *, is_wanted: bool) -> None:
        """Record the outcome of request ``number``."""


@dataclass(frozen=True)
class _Answered:
    """A request that the stable pair has answered.

    Attributes:
        call: The request, with its seed.
        observation: Observation of the answer.
        received: The answer.
    """

    call: Call
    observation: Observation
    received: ReceivedAnswer


class ShadowTraffic:
    """Replays requests within the limits of the table of arms. Runs on a single event loop.

    Args:
        arms: The table of arms.
        open_requests: Requests in flight; replays are added to them.
        note: Receives the observation of each replay.
        vocabulary: Bytes of the tokens.
    """

    def __init__(
        self, arms: LiveArms, open_requests: OpenRequests, note: Note, vocabulary: Vocabulary
    ) -> None:
        self._arms = arms
        self._open = open_requests
        self._note = note
        self._vocabulary = vocabulary
        self._shadow: ReplayQueue[_Answered] | None = None

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of replays started and dropped."""
        return (self._shadow.num_begun, self._shadow.num_dropped) if self._shadow else (0, 0)

    def offer(self, call: Call, observation: Observation, received: ReceivedAnswer) -> None:
        """Queue a request for replay."""
        if self._shadow is None:
            self._shadow = ReplayQueue(self._setting, self._replay)
        self._shadow.offer(_Answered(call, observation, received))

    async def end(self) -> None:
        """Stop all replays."""
        if self._shadow is not None:
            await self._shadow.close()

    def _setting(self) -> ShadowSetting | None:
        return self._arms.read().shadow_at(unix_time_s())

    async def _replay(self, answered: _Answered) -> None:
        table, before = self._arms.read(), answered.observation
        if table.candidate is None or table.canary_id != before.canary_id:
            return
        number, arrived_at_s = self._open.begin()
        observation = Observation(
            canary_id=table.canary_id,
            generation=table.generation,
            request_id=before.request_id,
            key=before.key,
            arm="candidate",
            arrived_at_s=arrived_at_s,
            oldest_open_at_s=arrived_at_s,
            band=before.band,
            is_replay=True,
            draft_length=before.draft_length,
            prompt_id=before.prompt_id,
            session_id=before.session_id,
        )
        is_wanted = True
        socket = Path(table.candidate.socket)
        try:
            received = await self._receive_answer(socket, answered.call)
            observation = replace(
                with_answer(observation, received),
                e2e_latency_s=unix_time_s() - arrived_at_s,
                num_common_tokens=num_common_tokens(answered.received.output_ids, received.output_ids),
            )
            observation = await self._compared(observation, answered, received, table, socket)
        except asyncio.CancelledError:
            is_wanted = False
            raise
        except DraftproofError as error:
            failure = failure_of(error)
            is_wanted = bool(failure)  # otherwise the queue is full or the client's deadline too short
            observation = replace(observation, failure=failure)
        finally:
            self._note(number, observation, is_wanted=is_wanted)

    async def _compared(
        self,
        observation: Observation,
        answered: _Answered,
        received: ReceivedAnswer,
        table: ArmTable,
        socket: Path,
    ) -> Observation:
        call = answered.call
        if not is_comparable(call):
            return with_chunk_check(observation, call, received, self._vocabulary)
        if table.replays_match == "stable":
            expected = answered.received
        else:
            expected = await self._receive_answer(socket, call, num_draft_tokens=scalar_tensor(0, np.int32))
        return with_comparison(observation, call, table.replays_match, expected, received, self._vocabulary)

    async def _receive_answer(self, socket: Path, call: Call, **others: npt.NDArray[Any]) -> ReceivedAnswer:
        tensors = {**call.tensors, **others, "streaming": scalar_tensor(True, np.bool_)}
        received = ReceivedAnswer(self._vocabulary)
        async with aclosing(stream(socket, replace(call, tensors=tensors))) as responses:
            async for outputs, _ in responses:
                received.add(outputs)
        return received
