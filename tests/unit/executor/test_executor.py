"""Tests of the executor on an engine that detects every mistake with the KV cache."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InvalidRequestError,
    PromptTooLongError,
    RecipeError,
    RequestTimeoutError,
    ServerBusyError,
)
from pipelines.executor import step_loop
from pipelines.executor.step import StepInputs
from pipelines.executor.step_loop import StepLoop
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampling.sampler import Sampler
from tests.support.recording_engine import (
    NUM_BLOCKS,
    RecordingEngine,
    alone,
    draft_and_target,
    make_executor,
    request,
    rounds_of,
    run,
)


@pytest.mark.parametrize("prompt_len", [1, 2, 3, 4, 5, 8, 9, 31, 32, 33, 34, 63, 65])
def test_a_prompt_of_any_length_is_answered_in_full(prompt_len: int) -> None:
    prompt = [1 + i % 15 for i in range(prompt_len)]
    assert len(alone(request(prompt, end_ids=()))) == 12


def test_a_draft_equal_to_the_target_is_accepted_whole() -> None:
    req = request([3, 1, 4, 1, 5], 16)
    draft, target = draft_and_target(agreement=16)
    rounds = run([draft, target], lambda: rounds_of(req, draft.complete, target, 4))
    assert [(part.num_draft_tokens, part.num_accepted_tokens, len(part.token_ids)) for part in rounds] == [
        (0, 0, 1),
        (4, 4, 5),
        (4, 4, 5),
        (4, 4, 5),
    ]
    assert rounds[-1].finish_reason == "length"


def test_a_round_computes_only_what_is_new() -> None:
    engine = RecordingEngine(NUM_BLOCKS)
    target = make_executor(engine)
    draft = make_executor(RecordingEngine(NUM_BLOCKS, role="draft"))
    run([draft, target], lambda: rounds_of(request([3, 1, 4, 1, 5], 16), draft.complete, target, 4))
    assert all(count == 1 for position, count in engine.num_computed.items() if position > 0)


def test_preemption_happens_and_changes_nothing() -> None:
    engine = RecordingEngine(26)
    target = make_executor(engine, 26)
    requests = [request([i + 1, 2, 3], 60) for i in range(3)]  # three times 16 blocks, of which there are 25

    async def everyone() -> list[list[int]]:
        outputs = await asyncio.gather(*(target.complete(req) for req in requests))
        return [output.token_ids.tolist() for output in outputs]

    answers = run([target], everyone)
    assert answers == [alone(req) for req in requests]
    assert max(engine.num_computed.values()) > 3, "no position was computed again, so nothing was preempted"


@pytest.mark.parametrize(("attention", "num_times"), [("openvino", 2), ("draftproof", 1)])
def test_an_answer_in_the_next_prompt_is_read_anew_if_its_bits_differ(attention: str, num_times: int) -> None:
    engine = RecordingEngine(NUM_BLOCKS, attention=attention)
    target = make_executor(engine)
    prompt = [3, 1, 4, 1, 5]
    answer = alone(request(prompt, 20, end_ids=()), attention)
    following = request([*prompt, *answer, 2, 6, 5], 12)

    async def conversation() -> list[int]:
        await target.complete(request(prompt, 20, end_ids=()))
        return (await target.complete(following)).token_ids.tolist()

    assert run([target], conversation) == alone(following, attention)
    written = range(len(prompt), len(prompt) + len(answer) - 1)  # the last token was not fed
    assert {engine.num_computed[position] for position in written} == {num_times}


def test_a_verification_of_a_fresh_prompt_is_answered_too() -> None:
    prompt, expected = [3, 1, 4, 1], alone(request([3, 1, 4, 1], 4))
    target = make_executor(RecordingEngine(NUM_BLOCKS))
    for drafts in ([*expected[:3]], [expected[0], 15, 15], [15 if expected[0] != 15 else 14]):
        req = request(prompt, len(drafts) + 1, draft_input_ids=np.array(drafts, np.int32))
        answer = run([target], lambda req=req: target.complete(req)).token_ids.tolist()
        num_equal = next((i for i, token in enumerate(drafts) if token != expected[i]), len(drafts))
        assert answer == expected[: num_equal + 1]
        target = make_executor(RecordingEngine(NUM_BLOCKS))


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (request([]), InvalidRequestError),
        (request([1] * 90, 7), PromptTooLongError),
        (request([1], 40, draft_input_ids=np.ones(32, np.int32)), InvalidRequestError),
    ],
)
def test_bad_requests_are_refused_and_hold_nothing(
    bad: GenerationRequest, error: type[DraftproofError]
) -> None:
    target = make_executor(RecordingEngine(NUM_BLOCKS))
    with pytest.raises(error):
        run([target], lambda: target.complete(bad))
    assert target.scheduler.num_free_blocks == target.scheduler.num_blocks
    assert not target.has_work


def test_a_full_queue_refuses_at_once() -> None:
    target = make_executor(RecordingEngine(NUM_BLOCKS), max_batch_size=1, max_queue_size=2)

    async def flood() -> list[Any]:
        return await asyncio.gather(
            *(target.complete(request([1, 2], 5)) for _ in range(5)), return_exceptions=True
        )

    answers = run([target], flood)
    assert sum(isinstance(answer, ServerBusyError) for answer in answers) == 2  # one runs, two wait


@pytest.mark.parametrize("num_steps_before", [0, 1, 12])
def test_a_failing_step_fails_its_requests_and_no_others(num_steps_before: int) -> None:
    engine = RecordingEngine(NUM_BLOCKS)
    target = make_executor(engine)

    async def fail_in_mid_answer() -> None:
        stream = target.generate(request([1, 2, 3], 40))
        for _ in range(num_steps_before):
            await anext_(stream)
        engine.fail_next = True
        async for _ in stream:
            pass

    async def scenario() -> tuple[Any, list[int]]:
        failed = await asyncio.gather(fail_in_mid_answer(), return_exceptions=True)
        return failed[0], (await target.complete(request([1, 2, 3], 40))).token_ids.tolist()

    error, answer = run([target], scenario)
    assert isinstance(error, EngineFailedError) and "secret" not in str(error)
    assert answer == alone(request([1, 2, 3], 40))
    assert target.scheduler.num_free_blocks == target.scheduler.num_blocks


class LateEngine(RecordingEngine):
    """Gives a step up at its time limit; it writes its keys and ends after somebody has asked for it."""

    late: StepInputs | None = None

    def __init__(self, num_blocks: int, num_steps_before: int) -> None:
        super().__init__(num_blocks, attention="draftproof")
        self._num_left = num_steps_before

    @property
    def is_busy(self) -> bool:
        late, self.late = self.late, None
        if late is not None:
            super().step(late)
        return late is not None

    @is_busy.setter
    def is_busy(self, value: bool) -> None:
        pass

    def step(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        if self.is_busy:
            raise RuntimeError("an earlier step is still running")
        self._num_left -= 1
        if not self._num_left:
            self.late = inputs
            raise TimeoutError("a step took more than 0.0 s")
        return super().step(inputs)


def test_nobody_gets_a_block_of_a_step_that_still_runs() -> None:
    late, short, copying = [7] * 90, [8] * 13, [1, 2, 3, 4, 5, *range(6, 16), *range(1, 16)]
    target = make_executor(LateEngine(26, num_steps_before=13), 26, max_num_tokens=8)

    async def scenario() -> tuple[list[Any], list[list[int]]]:
        await target.complete(request([1, 2, 3, 4, 5, 14], 1))
        given_up = [asyncio.ensure_future(target.complete(request(late, 4)))]
        while target.scheduler.num_free_blocks > 3:
            await asyncio.sleep(0)
        # They wait for the blocks of the last chunk of the first one, and one would copy into them.
        given_up += [asyncio.ensure_future(target.complete(request(text, 4))) for text in (short, copying)]
        failed = await asyncio.gather(*given_up, return_exceptions=True)
        assert target.scheduler.num_free_blocks == target.scheduler.num_blocks
        again = [await target.complete(request(text, 4)) for text in (late, short, copying)]
        return failed, [each.token_ids.tolist() for each in again]

    failed, again = run([target], scenario)
    expected = [alone(request(text, 4), "draftproof") for text in (late, short, copying)]
    answers = [each.token_ids.tolist() for each in failed if isinstance(each, Output)]
    assert answers == expected[len(failed) - len(answers) :], "over the keys of another text"
    assert [type(each) for each in failed] == [EngineFailedError] * 3
    assert again == expected


def test_a_passed_deadline_ends_the_request() -> None:
    target = make_executor(RecordingEngine(NUM_BLOCKS))
    late = replace(request([1, 2, 3]), deadline_s=time.monotonic() - 1)
    with pytest.raises(RequestTimeoutError):
        run([target], lambda: target.complete(late))
    assert target.scheduler.num_free_blocks == target.scheduler.num_blocks


def test_a_cancelled_request_gives_its_blocks_back_at_once() -> None:
    target = make_executor(RecordingEngine(NUM_BLOCKS))

    async def scenario() -> tuple[int, int]:
        stream = target.generate(request([1, 2, 3], 60))
        await anext_(stream)
        before = target.scheduler.num_free_blocks
        await stream.aclose()
        return before, target.scheduler.num_free_blocks

    before, after = run([target], scenario)
    assert before < after == target.scheduler.num_blocks


async def anext_(stream: Any) -> Any:
    return await stream.__anext__()


def test_stopping_the_loop_ends_what_runs_and_frees_its_blocks() -> None:
    target = make_executor(RecordingEngine(NUM_BLOCKS))
    loop = StepLoop([target])
    loop.start()
    ended = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)

    waiting = loop.spawn(endless())
    loop.spawn(target.complete(request([1, 2, 3]))).result(timeout=120)
    loop.stop()
    assert ended == [True] and waiting.cancelled()
    assert target.scheduler.num_free_blocks == target.scheduler.num_blocks


class PanicException(BaseException):
    """As a library in Rust raises it."""


DEFECTS = (ValueError, PanicException)


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_in_the_choice_of_one_request_fails_it_alone(
    defect: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make_executor(RecordingEngine(NUM_BLOCKS))
    choose = Sampler.choose

    def choose_or_fail(sampler: Sampler, logits: npt.NDArray[np.float32]) -> int:
        if sampler._request_id == "bad" and sampler.num_output == 3:
            raise defect("a defect")
        return choose(sampler, logits)

    monkeypatch.setattr(Sampler, "choose", choose_or_fail)
    asked = request([1, 2, 3])

    async def scenario() -> list[Any]:
        bad = replace(asked, request_id="bad")
        return await asyncio.gather(*map(target.complete, (asked, bad, asked)), return_exceptions=True)

    first, failed, second = run([target], scenario)
    assert isinstance(failed, EngineFailedError)
    assert first.token_ids.tolist() == second.token_ids.tolist() == alone(asked)
    assert target.scheduler.num_free_blocks == target.scheduler.num_blocks


class CompilingEngine(RecordingEngine):
    """An engine with three small networks, of which it adopts each in turn; the last one cannot be tried."""

    num_compiled = num_adopted = 0

    def compile_small_network(self) -> bool:
        if self.num_compiled == 3:
            return False
        self.num_compiled += 1
        return True

    def adopt_small_networks(self) -> None:
        while self.num_adopted < self.num_compiled:
            self.num_adopted += 1
            if self.num_adopted == 3:
                raise TimeoutError("a step took more than 120.0 s")


def test_an_idle_loop_adopts_small_networks_and_an_error_fails_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_loop, "_IDLE_S", 0.01)
    engine = CompilingEngine(NUM_BLOCKS)
    target, asked = make_executor(engine), request([1, 2, 3])

    async def scenario() -> Output:
        for _ in range(10_000):
            if engine.num_adopted == 3:
                break
            await asyncio.sleep(0.001)  # no request wakes the loop
        assert engine.num_adopted == 3
        return await target.complete(asked)

    assert run([target], scenario).token_ids.tolist() == alone(asked)


def test_no_network_is_compiled_beside_steps_unless_they_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_loop, "_IDLE_S", 0.2)
    monkeypatch.setattr(step_loop, "_MOST_BUSY_S", 1.0)
    engine = CompilingEngine(NUM_BLOCKS)
    target, asked = make_executor(engine), request([1, 2, 3])

    async def scenario() -> tuple[float, float]:
        began_s = time.monotonic()
        while not engine.num_compiled:
            await target.complete(asked)
        first_s = time.monotonic()
        while engine.num_compiled < 2:
            await asyncio.sleep(0.001)
        return first_s - began_s, time.monotonic() - first_s

    busy_s, idle_s = run([target], scenario)
    assert busy_s > 0.8 and idle_s < 0.8


def test_a_defect_of_a_grammar_that_looks_ahead_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_ahead(*_: Any) -> int:
        raise PanicException("a defect")

    monkeypatch.setattr(Sampler, "has_grammar", property(lambda _: True))
    monkeypatch.setattr(Sampler, "look_ahead", look_ahead)
    target = make_executor(RecordingEngine(NUM_BLOCKS))
    answer = run([target], lambda: target.complete(request([1, 2, 3])))
    assert answer.token_ids.tolist() == alone(request([1, 2, 3]))


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_between_steps_fails_the_requests_of_its_engine_and_no_later_one(
    defect: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make_executor(RecordingEngine(NUM_BLOCKS))
    asked = request([1, 2, 3])
    steps = iter([False, False, True])

    def learn_time(seconds: float) -> None:
        if next(steps, False):
            raise defect("math domain error")

    monkeypatch.setattr(target, "learn_time", learn_time)

    async def scenario() -> tuple[list[Any], Any]:
        failed = await asyncio.gather(*(target.complete(asked) for _ in range(3)), return_exceptions=True)
        return failed, await target.complete(asked)

    failed, later = run([target], scenario)
    assert [type(error) for error in failed] == [EngineFailedError] * 3
    assert later.token_ids.tolist() == alone(asked)
    assert target.scheduler.num_free_blocks == target.scheduler.num_blocks


@pytest.mark.parametrize("defect", DEFECTS)
def test_nobody_waits_for_a_loop_that_died(
    defect: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(**_: Any) -> None:
        raise defect("a defect")

    target = make_executor(RecordingEngine(NUM_BLOCKS))
    monkeypatch.setattr(target, "fail_all", die)
    monkeypatch.setattr(target, "step", die)
    loop = StepLoop([target])
    loop.start()
    with pytest.raises(CancelledError):
        loop.spawn(target.complete(request([1, 2, 3]))).result(timeout=20)


@pytest.mark.parametrize("limits", [{"max_num_tokens": 3}, {"max_seq_len": 512}])
def test_limits_that_contradict_each_other_are_refused_at_start(limits: dict[str, int]) -> None:
    with pytest.raises(RecipeError, match="contradict"):
        make_executor(RecordingEngine(NUM_BLOCKS), **limits)
