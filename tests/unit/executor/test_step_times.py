"""Tests of the steps that an executor times: a few at its start, and then its requests' own."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from pipelines.executor import executor as executor_module
from pipelines.executor.executor import Executor
from pipelines.executor.kv_cache import SCRATCH_BLOCK
from pipelines.executor.step import StepInputs
from tests.support.recording_engine import RecordingEngine, alone, make_executor, request, run


class CountingEngine(RecordingEngine):
    """Notes the number of tokens of each step."""

    def __init__(self) -> None:
        super().__init__(64)
        self.sizes: list[int] = []

    def step(self, inputs: StepInputs) -> np.ndarray:
        self.sizes.append(len(inputs.input_ids))
        return super().step(inputs)


class Noted:
    """Stands where an executor has its times, and notes what it is taught."""

    def __init__(self) -> None:
        self.taught: list[tuple[int, float]] = []

    def observe(self, num_tokens: int, seconds: float) -> None:
        self.taught.append((num_tokens, seconds))


def noting() -> tuple[Executor, list[tuple[int, float]]]:
    executor, noted = make_executor(RecordingEngine(64)), Noted()
    executor.times = noted  # type: ignore[assignment]
    return executor, noted.taught


def test_a_warm_engine_has_times_and_nothing_in_its_cache() -> None:
    executor = make_executor(engine := CountingEngine())
    executor.warm_up()
    assert engine.sizes == [size for size in (1, 2, 4, 8, 16) for _ in range(2)]
    assert executor.times is not None and min(map(executor.times.seconds, (1, 5, 99))) > 0
    assert (np.delete(engine._tokens, SCRATCH_BLOCK, axis=0) == -1).all()
    asked = request([1, 2, 3])
    assert run([executor], lambda: executor.complete(asked)).token_ids.tolist() == alone(asked)


def test_a_slow_engine_is_timed_with_two_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "_WARM_UP_S", -1.0)
    executor = make_executor(engine := CountingEngine())
    executor.warm_up()
    assert sorted(set(engine.sizes)) == [1, 2]
    assert executor.times is not None and executor.times.seconds(99) > 0


def test_steps_of_decode_tokens_teach_and_those_with_prompts_do_not() -> None:
    executor, taught = noting()

    async def answer() -> None:
        asked = asyncio.gather(*(executor.complete(request([1, 2, each], 3)) for each in (3, 4, 5)))
        while not asked.done():
            await asyncio.sleep(0)
            if executor.has_work:
                executor.step()
                executor.learn_time(0.5)
        await asked

    asyncio.run(answer())
    assert executor.num_steps > len(taught) > 0, "the first step has prompts"
    assert set(taught) == {(3, 0.5)}


def test_steps_that_are_computed_at_once_share_their_time() -> None:
    executor, taught = noting()

    async def answer() -> None:
        asked = asyncio.ensure_future(
            executor.complete(request([1, 2, 3], 9, keep_drafting=lambda gap: True))
        )
        while not asked.done():
            await asyncio.sleep(0)
            if executor.has_work:
                num_before = executor.num_steps
                executor.step(may_continue=True)
                executor.learn_time(float(executor.num_steps - num_before))
        await asked

    asyncio.run(answer())
    assert executor.num_steps > len(taught) + 1, "some were computed at once"
    assert set(taught) == {(1, 1.0)}
