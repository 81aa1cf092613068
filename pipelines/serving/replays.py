"""The candidate repeats what the stable pair answered, and its tokens are compared with what they should be.

A candidate with the stable pair's target should say what that pair said. One with another target, say of
another quantization, has its own right answer: that target without drafting. So it is asked twice, with one
seed, and the two answers are compared.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pipelines.errors import DraftproofError, ServerBusyError
from pipelines.routing.arms import ArmTable, LiveArms, ShadowSetting
from pipelines.routing.observation import Observation
from pipelines.routing.open_requests import OpenRequests, unix_time_s
from pipelines.routing.shadow import Shadow
from pipelines.serving.local_calls import Call, Tensors, stream
from pipelines.serving.observing import (
    answer_observed,
    compared,
    failure_of,
    is_comparable,
    num_common_tokens,
)
from pipelines.serving.triton_wire import scalar_tensor
from pipelines.text.vocabulary import Vocabulary


class Note(Protocol):
    """Takes what is to be noted of an open request that ended."""

    def __call__(self, number: int, observation: Observation, *, is_wanted: bool) -> None:
        """Of this number."""


@dataclass(frozen=True)
class _Answered:
    """What the stable pair has answered.

    Attributes:
        call: With its seed.
        observation: Of the answer.
        output_ids: Its tokens.
    """

    call: Call
    observation: Observation
    output_ids: list[int]


class Replays:
    """Repeats answers within the bounds of the table of arms; all on one loop.

    Args:
        arms: Followed.
        open_requests: Replays are among them.
        note: Gets what came of each replay.
        vocabulary: Bytes of the tokens.
    """

    def __init__(
        self, arms: LiveArms, open_requests: OpenRequests, note: Note, vocabulary: Vocabulary
    ) -> None:
        self._arms = arms
        self._open = open_requests
        self._note = note
        self._vocabulary = vocabulary
        self._shadow: Shadow[_Answered] | None = None

    @property
    def counts(self) -> tuple[int, int]:
        """Replays begun, and dropped."""
        return (self._shadow.num_begun, self._shadow.num_dropped) if self._shadow else (0, 0)

    def offer(self, call: Call, observation: Observation, output_ids: list[int]) -> None:
        """Repeat an answer as soon as there is room; returns at once."""
        if self._shadow is None:
            self._shadow = Shadow(self._setting, self._replay)
        self._shadow.offer(_Answered(call, observation, output_ids))

    async def end(self) -> None:
        """Repeat nothing any more."""
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
            outputs = await _whole_answer(socket, answered.call)
            output_ids = _ids(outputs)
            observation = replace(
                answer_observed(observation, outputs, output_ids),
                e2e_latency_s=unix_time_s() - arrived_at_s,
                num_common_tokens=num_common_tokens(answered.output_ids, output_ids),
            )
            if is_comparable(answered.call):
                observation = await self._compared(observation, answered, output_ids, table, socket)
        except asyncio.CancelledError:
            is_wanted = False
            raise
        except ServerBusyError:
            is_wanted = False  # its queue is bounded for the sake of those who wait
        except DraftproofError as error:
            observation = replace(observation, failure=failure_of(error))
        finally:
            self._note(number, observation, is_wanted=is_wanted)

    async def _compared(
        self,
        observation: Observation,
        answered: _Answered,
        output_ids: list[int],
        table: ArmTable,
        socket: Path,
    ) -> Observation:
        call = answered.call
        if table.replays_match == "stable":
            expected_ids = answered.output_ids
        else:
            alone = scalar_tensor(0, np.int32)
            expected_ids = _ids(await _whole_answer(socket, call, num_draft_tokens=alone))
        return compared(observation, call, table.replays_match, expected_ids, output_ids, self._vocabulary)


async def _whole_answer(socket: Path, call: Call, **others: npt.NDArray[Any]) -> Tensors:
    tensors = {**call.tensors, **others, "streaming": scalar_tensor(False, np.bool_)}
    async with aclosing(stream(socket, replace(call, tensors=tensors))) as responses:
        return [outputs async for outputs, _ in responses][-1]


def _ids(outputs: Tensors) -> list[int]:
    ids: list[int] = outputs["output_ids"].reshape(-1).tolist()
    return ids
