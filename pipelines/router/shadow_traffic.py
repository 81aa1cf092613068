"""Replays requests of the stable pair on the candidate and compares the answers.

A candidate with the stable pair's target must give the same answer. A candidate with another target, such as
one with another quantization, is compared with its own target: it answers twice with the same seed, with and
without drafting. Replays are streamed like all requests of the router.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pipelines.errors import DraftproofError
from pipelines.router.arms import ArmTable, LiveArms, ShadowSetting
from pipelines.router.observation import Observation
from pipelines.router.observing import (
    failure_of,
    is_comparable,
    num_common_tokens,
    with_answer,
    with_chunk_check,
    with_comparison,
)
from pipelines.router.open_requests import OpenRequests, unix_time_s
from pipelines.router.received_answer import ReceivedAnswer
from pipelines.router.replay_queue import ReplayQueue
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.calls import Call, stream
from pipelines.wire.tensors import scalar_tensor


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
