"""Tests of how long prompts and running answers share the time."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import numpy.typing as npt
import pytest

from pipelines.executor.chunk_budget import SharedTime
from pipelines.executor.executor import Executor
from pipelines.executor.step import StepInputs
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest
from tests.support.recording_engine import RecordingEngine, make_executor, recording_config, run

NUM_BLOCKS = 2000
LONG, SHORT = 1500, 20
LOOP, CONTROL = 0, 1
STEP_S, TOKEN_S = 0.001, 0.0002


class Clock:
    """The executor's clock; only engine steps take time."""

    now_s = 0.0
    monotonic = staticmethod(time.monotonic)
    process_time = staticmethod(time.process_time)

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("pipelines.executor.executor.time", clock)
    return clock


class TimedEngine(RecordingEngine):
    """Takes time for each token, and notes how much each step took."""

    def __init__(
        self, clock: Clock, role: str = "target", step_s: float = STEP_S, token_s: float = TOKEN_S
    ) -> None:
        super().__init__(NUM_BLOCKS, role=role)
        self._step_s, self._token_s = step_s, token_s
        self.config = recording_config(role, max_position_embeddings=4096)
        self.steps_s: list[float] = []
        self._clock = clock

    def step(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        seconds = self._step_s + self._token_s * len(inputs.input_ids)
        self._clock.now_s += seconds
        self.steps_s.append(seconds)
        return super().step(inputs)


def executor_of(engine: TimedEngine, num_classes: int = 1) -> Executor:
    return make_executor(engine, NUM_BLOCKS, num_classes, max_num_tokens=512, max_seq_len=2000)


def request(num_tokens: int, max_tokens: int, seed: int = 1) -> GenerationRequest:
    prompt = np.random.default_rng(seed).integers(1, 16, num_tokens).astype(np.int32)
    return GenerationRequest("test", prompt, max_tokens, end_ids=())


async def finished(
    executor: Executor, clock: Clock, req: GenerationRequest, class_number: int = LOOP
) -> float:
    async for _ in executor.generate(req, class_number):
        pass
    return clock.now_s


def test_a_short_prompt_overtakes_a_long_one(clock: Clock) -> None:
    executor = executor_of(TimedEngine(clock))

    async def ask() -> tuple[float, float]:
        return await asyncio.gather(
            finished(executor, clock, request(LONG, 1)), finished(executor, clock, request(SHORT, 1, seed=2))
        )

    long_s, short_s = run([executor], ask)
    assert short_s < long_s / 2


def test_the_oldest_prompt_is_read_although_shorter_ones_keep_coming(clock: Clock) -> None:
    executor = executor_of(TimedEngine(clock))

    async def ask() -> int:
        task = asyncio.create_task(finished(executor, clock, request(LONG, 1)))
        count = 0
        while not task.done():
            others = [request(200, 1, seed=10 + count + index) for index in range(3)]
            await asyncio.gather(*(finished(executor, clock, other) for other in others))
            count += 3
            assert count < 60, "the long prompt starves"
        return count

    assert run([executor], ask) > 0


@pytest.mark.parametrize("reads_in_draft", [False, True])
def test_a_long_prompt_leaves_an_answer_its_share(clock: Clock, reads_in_draft: bool) -> None:
    engine, draft_engine = TimedEngine(clock), TimedEngine(clock, role="draft")
    target, draft = executor_of(engine), executor_of(draft_engine)

    async def ask() -> tuple[list[float], float]:
        answer = asyncio.create_task(finished(target, clock, request(SHORT, 1900, seed=2)))
        while len(engine.steps_s) < 10:
            await asyncio.sleep(0)
        before, begun_s = len(engine.steps_s), clock.now_s
        read_s = await finished(draft if reads_in_draft else target, clock, request(LONG, 1))
        answer.cancel()
        steps_s = engine.steps_s[before:]
        assert max(steps_s + draft_engine.steps_s) < 0.15, "a chunk is short"
        return [seconds for seconds in steps_s if seconds < 0.002], read_s - begun_s

    answered, seconds = run([draft, target], ask)
    assert sum(answered) > 0.55 * seconds


def test_long_prompts_of_two_classes_are_read_at_the_same_speed(clock: Clock) -> None:
    """Each step of an answer pays for a chunk, so that chunks come in every second step."""
    executor = executor_of(TimedEngine(clock, step_s=0.12), num_classes=2)

    async def ask() -> list[int]:
        begin = asyncio.create_task(finished(executor, clock, request(SHORT, 1900, seed=2)))
        while not executor.num_steps:
            await asyncio.sleep(0)
        prompts = [
            asyncio.create_task(finished(executor, clock, request(LONG, 1, seed=3 + number), number))
            for number in (LOOP, CONTROL)
        ]
        await asyncio.wait(prompts, return_when=asyncio.FIRST_COMPLETED)
        left = [request for each in executor.scheduler.classes for request in each.reading]
        begin.cancel()
        return [each.num_computed for each in left]

    assert all(num_read > LONG / 2 for num_read in run([executor], ask))


def test_beside_verifications_that_wait_the_chunks_of_the_other_class_are_short(clock: Clock) -> None:
    """Between two rounds an answer is in the queue of the target, or nowhere."""
    draft = executor_of(TimedEngine(clock, "draft"))
    engine = TimedEngine(clock, token_s=0.002)
    target = executor_of(engine, num_classes=2)

    async def write() -> None:
        rounds = speculate(request(SHORT, 1900), draft.complete, target.complete, FixedDraftLength(3))
        async for _ in rounds:
            pass

    async def ask() -> float:
        answer = asyncio.create_task(write())
        while not engine.num_steps:
            await asyncio.sleep(0)
        before = len(engine.steps_s)
        await finished(target, clock, request(1000, 1, seed=2), CONTROL)
        answer.cancel()
        return max(engine.steps_s[before:])

    assert run([draft, target], ask) < 0.2


def test_a_long_prompt_gets_its_share_although_short_ones_keep_coming_beside_an_answer(clock: Clock) -> None:
    executor = executor_of(TimedEngine(clock))

    async def ask() -> tuple[float, float]:
        answer = asyncio.create_task(finished(executor, clock, request(SHORT, 1900, seed=2)))
        while not executor.num_steps:
            await asyncio.sleep(0)
        begun_s = clock.now_s
        task = asyncio.create_task(finished(executor, clock, request(LONG, 1)))
        for count in range(500):
            await finished(executor, clock, request(200, 1, seed=10 + count))
            if task.done():
                break
        assert task.done(), "the long prompt starves"
        answer.cancel()
        return await task - begun_s, LONG * TOKEN_S

    took_s, alone_s = run([executor], ask)
    assert took_s < 5 * alone_s


def test_a_prompt_alone_is_read_in_large_chunks(clock: Clock) -> None:
    engine = TimedEngine(clock)
    executor = executor_of(engine)
    run([executor], lambda: finished(executor, clock, request(LONG, 1)))
    assert len(engine.steps_s) < 12


def test_debt_is_paid_by_answers_in_proportion_to_requests() -> None:
    shared = SharedTime(num_reading=1, num_answering=2, debt_s=1.0)
    assert shared.must_wait
    for _ in range(3):
        shared.note(0.0, 1.0)  # one of four shares
    assert shared.debt_s == pytest.approx(0.25)
    shared.note(0.0, 9.0)
    assert shared.debt_s == 0 and not shared.must_wait


@pytest.mark.parametrize("budget", [4, 5, 9])
def test_no_split_leaves_a_chunk_of_one_token(budget: int) -> None:
    """One token alone would be a decode token, with other last bits; the executor never computes it."""
    for num_tokens in range(2, 4 * budget):
        executor = make_executor(RecordingEngine(64), max_num_tokens=budget)
        answer = run([executor], lambda: executor.complete(request(num_tokens, 1)))
        assert len(answer.token_ids) == 1, num_tokens
