"""Tests of two batch classes on one engine: neither reads, delays or starves the other."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import RecipeError, ServerBusyError
from pipelines.executor.executor import Executor
from pipelines.executor.kv_cache import KvCache
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest, Output
from tests.support.examples import examples
from tests.support.recording_engine import (
    RecordingEngine,
    alone,
    draft_and_target,
    held_blocks,
    make_executor,
    request,
    run,
)

LOOP, CONTROL = 0, 1
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]


async def tokens(executor: Executor, req: GenerationRequest, number: int) -> list[int]:
    return Output.joined([output async for output in executor.generate(req, number)]).token_ids.tolist()


async def speculated(draft: Executor, target: Executor, req: GenerationRequest) -> list[int]:
    target.scheduler.has_open_rounds = lambda: True
    rounds = speculate(req, draft.complete, target.complete, FixedDraftLength(3), stream=target.generate)
    return [token async for part in rounds for token in part.token_ids.tolist()]


def corrupt(engine: RecordingEngine, cache: KvCache) -> None:
    """Change what a cache believes to hold, as a loop does that writes wrong keys and values."""
    engine._tokens[sorted(held_blocks(cache))] += 1


def test_a_class_reads_no_block_that_the_other_has_written() -> None:
    engine = RecordingEngine(64)
    executor = make_executor(engine, num_classes=2)
    expected = alone(request(PROMPT))

    async def scenario() -> tuple[list[int], list[int], list[int]]:
        first = await tokens(executor, request(PROMPT), LOOP)
        corrupt(engine, executor.scheduler.classes[LOOP].cache)
        control = await tokens(executor, request(PROMPT), CONTROL)
        return first, control, await tokens(executor, request(PROMPT), LOOP)

    first, control, again = run([executor], scenario)
    assert first == control == expected
    assert again != expected, "the loop's own blocks were wrong, and it did read them"


@examples(30)
@given(
    wanted=st.lists(
        st.tuples(
            st.integers(0, 1), st.lists(st.integers(1, 3), min_size=1, max_size=30), st.integers(1, 30)
        ),
        min_size=2,
        max_size=12,
    ),
    num_blocks=st.integers(33, 64),
)
def test_answers_do_not_depend_on_the_other_class(
    wanted: list[tuple[int, list[int], int]], num_blocks: int
) -> None:
    draft = make_executor(RecordingEngine(64, salt=1, agreement=12, role="draft"))
    target = make_executor(RecordingEngine(num_blocks), num_blocks, num_classes=2, max_seq_len=64)

    async def ask(number: int, req: GenerationRequest) -> list[int]:
        return await (tokens(target, req, CONTROL) if number else speculated(draft, target, req))

    async def all_answers() -> list[list[int]]:
        return await asyncio.gather(*(ask(number, request(*each)) for number, *each in wanted))

    assert run([draft, target], all_answers) == [alone(request(*each)) for _, *each in wanted]


@pytest.mark.parametrize(("many", "one"), [(LOOP, CONTROL), (CONTROL, LOOP)])
@pytest.mark.parametrize("limits", [{}, {"max_num_tokens": 8, "num_blocks": 400}, {"num_blocks": 49}])
def test_a_full_class_lets_the_other_answer(many: int, one: int, limits: dict[str, int]) -> None:
    """Eight long requests have places, decode tokens and blocks, and a queue waits."""
    executor = make_executor(RecordingEngine(400), num_classes=2, **limits)
    executor.scheduler.has_open_rounds = lambda: True
    ended: list[int] = []

    async def ask(number: int, req: GenerationRequest) -> None:
        await tokens(executor, req, number)
        ended.append(number)

    async def scenario() -> None:
        prompts = [[1 + number % 15, 2, 3, 4] for number in range(24)]
        others = [asyncio.ensure_future(ask(many, request(each, 90))) for each in prompts]
        while len(executor.scheduler.classes[many].running) < 2:
            await asyncio.sleep(0)
        await ask(one, request([5] * 20, 10))
        await asyncio.gather(*others)

    run([executor], scenario)
    assert ended.index(one) < 2, "at most one of those that were ahead ended sooner"


def test_each_class_has_a_queue_of_its_own() -> None:
    executor = make_executor(RecordingEngine(64), num_classes=2, max_batch_size=1, max_queue_size=0)

    async def scenario() -> None:
        first = asyncio.ensure_future(tokens(executor, request(PROMPT, 60), LOOP))
        while not executor.scheduler.classes[LOOP].has_work:
            await asyncio.sleep(0)
        with pytest.raises(ServerBusyError):
            await tokens(executor, request(PROMPT), LOOP)
        assert await tokens(executor, request(PROMPT), CONTROL) == alone(request(PROMPT))
        await first

    run([executor], scenario)


def test_the_loop_keeps_the_blocks_that_the_control_may_need_later() -> None:
    """Four of the loop hold 32 of 48 blocks; the control needs 2 now, and 24 if it writes so much."""
    executor = make_executor(RecordingEngine(49), 49, num_classes=2)
    executor.scheduler.has_open_rounds = lambda: True

    async def scenario() -> int:
        others = [
            asyncio.ensure_future(tokens(executor, request([each] * 24, 6), LOOP)) for each in (1, 2, 3, 4)
        ]
        control = asyncio.ensure_future(tokens(executor, request([5] * 4, 92), CONTROL))
        most = 0
        while not all(each.done() for each in others):
            await asyncio.sleep(0)
            if executor.num_steps:
                most = max(most, len(executor.scheduler.classes[LOOP].waiting))
        await control
        return most

    assert run([executor], scenario) == 0, "none was preempted or kept waiting"


@pytest.mark.parametrize(("is_open", "share"), [(True, 0.5), (False, 1.0)])
def test_the_control_has_all_blocks_while_the_loop_has_no_request(is_open: bool, share: float) -> None:
    executor = make_executor(RecordingEngine(49), 49, num_classes=2)
    executor.scheduler.has_open_rounds = lambda: is_open
    most = 0

    async def scenario() -> None:
        nonlocal most
        prompts = [[1 + number, 2, 3, 4] for number in range(8)]
        others = [asyncio.ensure_future(tokens(executor, request(each, 90), CONTROL)) for each in prompts]
        while not all(each.done() for each in others):
            most = max(most, executor.scheduler.classes[CONTROL].cache.num_used)
            await asyncio.sleep(0)

    run([executor], scenario)
    assert share * 48 - 2 <= most <= share * 48


def test_blocks_must_hold_a_request_of_full_length_in_each_class() -> None:
    make_executor(RecordingEngine(49), 49, num_classes=2, max_seq_len=96)
    with pytest.raises(RecipeError, match="num_kv_blocks > 48"):
        make_executor(RecordingEngine(48), 48, num_classes=2, max_seq_len=96)


def test_cpu_time_is_divided_by_the_tokens_of_each_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollout compares the CPU time of loops, beside which one process answers more for the control."""
    executor = make_executor(RecordingEngine(64), num_classes=2)
    now_s = iter(range(10_000))
    monkeypatch.setattr("pipelines.executor.executor.time.process_time", lambda: float(next(now_s)))

    async def both() -> None:
        await asyncio.gather(*(tokens(executor, request([5] * 9, 20), number) for number in (LOOP, CONTROL)))

    run([executor], both)
    loop_s, control_s = (each.cpu_s for each in executor.scheduler.classes)
    assert loop_s + control_s == pytest.approx(executor.num_steps)
    assert min(loop_s, control_s) > 0.25 * executor.num_steps


def test_tokens_of_prompts_that_were_in_the_cache_are_counted() -> None:
    executor = make_executor(RecordingEngine(64), num_classes=2)
    size = executor.scheduler.classes[LOOP].cache.block_size
    prompt = [1 + number % 3 for number in range(3 * size + 2)]

    async def scenario() -> None:
        for number in (LOOP, LOOP, CONTROL):
            await tokens(executor, request(prompt, 2), number)

    run([executor], scenario)
    assert (executor.scheduler.num_looked_up, executor.scheduler.num_found) == (3 * len(prompt), 3 * size)
    assert executor.scheduler.classes[CONTROL].num_found == 0, "each class has its own cache"


@pytest.mark.parametrize("number", [LOOP, CONTROL])
@pytest.mark.parametrize("num_more", [0, 1, 2, 3])
def test_both_classes_find_all_of_a_prompt_but_its_last_tokens(number: int, num_more: int) -> None:
    executor = make_executor(RecordingEngine(64), num_classes=2)
    prompt = [
        1 + number % 3 for number in range(3 * executor.scheduler.classes[LOOP].cache.block_size + num_more)
    ]

    async def scenario() -> list[int]:
        found = []
        for _ in range(3):
            outputs = [output async for output in executor.generate(request(prompt, 10), number)]
            found.append(Output.joined(outputs).num_cached)
        return found

    assert run([executor], scenario) == [0, len(prompt) - 2, len(prompt) - 2]
    assert executor.scheduler.classes[number].num_found == 2 * (len(prompt) - 2)


def test_a_prompt_is_counted_once_however_many_rounds_its_answer_takes() -> None:
    draft, target = draft_and_target(agreement=8, num_classes=2)
    run([draft, target], lambda: speculated(draft, target, request(PROMPT, 40)))
    assert (target.scheduler.num_looked_up, target.scheduler.num_found) == (len(PROMPT), 0)
