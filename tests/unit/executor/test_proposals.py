"""Tests of steps that continue proposals without being scheduled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pipelines.errors import EngineFailedError, RequestTimeoutError
from pipelines.executor.chunk_budget import SharedTime
from pipelines.executor.executor import Executor
from pipelines.executor.step import Chunk, StepInputs, pack, with_states
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.params import SamplingParams
from tests.support.recording_engine import BLOCK_SIZE, RecordingEngine, check_blocks, make_executor

LONGEST = 12


def proposal(length: int, least_gap: float = 0.0, **fields: Any) -> GenerationRequest:
    prompt = np.array([1 + (i * i + length) % 15 for i in range(length)], np.int32)
    return GenerationRequest("test", prompt, LONGEST, keep_drafting=lambda gap: gap >= least_gap, **fields)


def propose(
    requests: Sequence[GenerationRequest], *, may_continue: bool, executor: Executor | None = None
) -> tuple[list[Any], int, int]:
    """Return the proposals or their errors, the number of steps, and that of calls of ``Executor.step``."""
    executor = executor or make_executor(RecordingEngine(64, role="draft"))

    async def run() -> tuple[list[Any], int]:
        asked = asyncio.gather(*map(executor.complete, requests), return_exceptions=True)
        num_calls = 0
        while not asked.done():
            await asyncio.sleep(0)
            if executor.has_work:
                executor.step(may_continue=may_continue)
                num_calls += 1
        return await asked, num_calls

    outputs, num_calls = asyncio.run(run())
    check_blocks(executor)
    return outputs, executor.num_steps, num_calls


@pytest.mark.parametrize("least_gaps", [(0.0,), (1.0,), (0.0, 0.0), (0.0, 1.0, 2.0)])
@pytest.mark.parametrize("length", range(BLOCK_SIZE, 2 * BLOCK_SIZE))
@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=1.0, seed=3)])
def test_proposals_are_those_of_scheduled_steps(
    sampling: SamplingParams, length: int, least_gaps: tuple[float, ...]
) -> None:
    """The last two tokens of each request are output that the draft has not read."""
    requests = [
        proposal(length + 5 * i, least, sampling=sampling, prompt_length=length + 5 * i - 2)
        for i, least in enumerate(least_gaps)
    ]
    planned, num_planned, num_plans = propose(requests, may_continue=False)
    continued, num_steps, num_calls = propose(requests, may_continue=True)
    for one, other in zip(planned, continued, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.gaps.tolist() == other.gaps.tolist() and one.finish_reason == other.finish_reason
    assert (num_steps, num_plans) == (num_planned, num_planned)
    assert num_calls < num_plans or any(least_gaps)


def test_a_proposal_is_scheduled_again_only_where_a_block_begins() -> None:
    _, num_steps, num_calls = propose([proposal(2)], may_continue=True)
    assert num_steps == LONGEST
    num_begun = (2 + LONGEST - 2) // BLOCK_SIZE  # the last token is computed at this position
    assert num_calls == 2 + num_begun, "the prompt, the first decode token, and each one that begins a block"


class SlowEngine(RecordingEngine):
    """Takes 20 ms for a step."""

    def step(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        time.sleep(0.02)
        return super().step(inputs)


def test_a_deadline_ends_a_proposal() -> None:
    executor = make_executor(SlowEngine(64, role="draft"))
    asked = proposal(2, deadline_s=time.monotonic() + 0.09)
    [error], num_steps, _ = propose([asked], may_continue=True, executor=executor)
    assert isinstance(error, RequestTimeoutError) and num_steps <= 5, "more take 0.1 s"


def test_a_proposal_does_not_go_on_beside_a_prompt_that_has_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedTime, "must_wait", True)
    monkeypatch.setattr("pipelines.executor.scheduler.is_short", lambda request: False)
    executor = make_executor(RecordingEngine(64, role="draft"))
    schedule = executor.scheduler.schedule
    numbers: list[int] = []

    def one_prompt_first() -> Any:
        numbers.append(executor.num_steps)
        return schedule()[:1]

    monkeypatch.setattr(executor.scheduler, "schedule", one_prompt_first)
    propose([proposal(2), proposal(20)], may_continue=True, executor=executor)
    assert numbers[:LONGEST] == list(range(LONGEST)), "each step is scheduled, so that the prompt may join it"
    assert executor.num_steps > numbers[-1] + 1, "the second proposal goes on alone"


def test_a_step_that_fails_ends_proposals_that_went_on() -> None:
    executor = make_executor(FailingEngine(64, role="draft"))
    [error], num_steps, _ = propose([proposal(2)], may_continue=True, executor=executor)
    assert isinstance(error, EngineFailedError) and num_steps == 3
    assert executor.scheduler.num_free_blocks == executor.scheduler.num_blocks


class FailingEngine(RecordingEngine):
    """Fails in its fourth step."""

    def step(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        self.fail_next = self.num_steps == 3
        return super().step(inputs)


def test_a_request_without_room_for_its_last_token_is_scheduled_again() -> None:
    """Three proposals have two decode tokens to begin with, and a step has room for five."""
    requests = [proposal(5 + i, prompt_length=3 + i) for i in range(3)]
    found = []
    for may_continue in (False, True):
        executor = make_executor(RecordingEngine(64, role="draft"), max_num_tokens=5, max_batch_size=5)
        outputs, _, _ = propose(requests, may_continue=may_continue, executor=executor)
        found.append([output.token_ids.tolist() for output in outputs])
    assert found[0] == found[1]


def test_what_follows_a_step_is_what_scheduling_would_lay_out() -> None:
    def decoding(*starts: int) -> StepInputs:
        chunks = [
            Chunk(
                np.full(1, 7 + s, np.int32),
                s,
                (2, 3, 5),
                is_decode=True,
                num_logits=1,
                hidden=np.full((1, 2), s, np.float32),
                slot=3,
            )
            for s in starts
        ]
        return with_states(pack(chunks, BLOCK_SIZE, 4), 2, 1)

    own = np.array([[2, 2], [6, 6], [0, 0], [0, 0]], np.float32)
    moved, planned = with_states(decoding(1, 5).moved_on([9, 13], own), 2, 1), decoding(2, 6)
    for name, array in vars(planned).items():
        found = getattr(moved, name)
        if name == "hidden_rows":
            found, array = found[:2], array[:2]  # dummy rows read any
        assert np.array_equal(found, array), name
        assert found.dtype == array.dtype
