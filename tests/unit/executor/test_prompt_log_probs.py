"""Tests of log probabilities of the prompt: equal whatever is computed beside it, and to a whole pass."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import InvalidRequestError
from pipelines.executor import request as request_module
from pipelines.executor.executor import Executor
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest, Output
from tests.support.examples import examples
from tests.support.recording_engine import VOCAB_SIZE, RecordingEngine, make_executor, run

PROMPTS = st.lists(st.integers(1, 3), min_size=1, max_size=40)


def request(prompt: list[int], max_tokens: int = 6, **fields: Any) -> GenerationRequest:
    asked = {"num_log_probs": 3, "prompt_log_probs": True, **fields}
    return GenerationRequest("test", np.array(prompt, np.int32), max_tokens, **asked)


def expected(prompt: list[int]) -> LogProbs:
    """Return what a single pass over the whole prompt gives."""
    engine = RecordingEngine(64)
    whole = np.array([[token, 1] for token in prompt]).T
    contexts = [np.ascontiguousarray(whole[:, :length]).tobytes() for length in range(1, len(prompt))]
    logits = np.array([engine._logits(each) for each in contexts], np.float32).reshape(-1, VOCAB_SIZE)
    return LogProbs.of(logits, np.array(prompt[1:], np.int32), 3)


def same(found: LogProbs | None, wanted: LogProbs) -> bool:
    assert found is not None
    pairs = zip(vars(found).values(), vars(wanted).values(), strict=True)
    return all(np.array_equal(ours, theirs) and ours.dtype == theirs.dtype for ours, theirs in pairs)


@examples(60)
@given(
    prompts=st.lists(PROMPTS, min_size=1, max_size=4),
    most_logits=st.sampled_from([1, 7 * VOCAB_SIZE, 1 << 22]),
    num_blocks=st.sampled_from([64, 25]),
    max_num_tokens=st.sampled_from([4, 32]),
)
def test_they_do_not_depend_on_chunks_mates_caches_preemption_or_the_draft(
    prompts: list[list[int]], most_logits: int, num_blocks: int, max_num_tokens: int
) -> None:
    """Prompts repeat, so that most of their blocks are cached."""
    limits = {"max_num_tokens": max_num_tokens, "max_queue_size": 64}
    target = make_executor(RecordingEngine(64), num_blocks, **limits)
    draft = make_executor(RecordingEngine(64, salt=1, agreement=12, role="draft"), max_queue_size=64)

    async def loop(prompt: list[int]) -> tuple[LogProbs | None, list[int]]:
        rounds = speculate(request(prompt), draft.complete, target.complete, FixedDraftLength(3))
        found = [part async for part in rounds]
        assert all(part.prompt_log_probs is None for part in found[1:])
        return found[0].prompt_log_probs, [token for part in found for token in part.token_ids.tolist()]

    async def alone(prompt: list[int]) -> tuple[LogProbs | None, list[int]]:
        output = await target.complete(request(prompt))
        return output.prompt_log_probs, output.token_ids.tolist()

    async def plain(prompt: list[int]) -> list[int]:
        output = await target.complete(request(prompt, num_log_probs=None, prompt_log_probs=False))
        assert output.prompt_log_probs is None
        return output.token_ids.tolist()

    async def everyone() -> list[Any]:
        doubled = [*prompts, *prompts]
        return await asyncio.gather(*(ask(each) for ask in (loop, alone, plain) for each in doubled))

    before, request_module._MOST_LOGITS = request_module._MOST_LOGITS, most_logits
    try:
        found = run([draft, target], everyone)
    finally:
        request_module._MOST_LOGITS = before
    num = 2 * len(prompts)
    for index, prompt in enumerate([*prompts, *prompts]):
        assert same(found[index][0], expected(prompt)) and same(found[num + index][0], expected(prompt))
        assert found[index][1] == found[num + index][1] == found[2 * num + index]


def test_the_logits_of_a_long_prompt_are_never_held_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_module, "_MOST_LOGITS", 8 * VOCAB_SIZE)
    counts: list[int] = []

    class Counting(RecordingEngine):
        def step(self, inputs: Any) -> Any:
            counts.append(len(inputs.logits_rows))
            return super().step(inputs)

    executor = make_executor(Counting(64))
    prompt = [1, 2] * 20
    found = run([executor], lambda: executor.complete(request(prompt)))
    assert same(found.prompt_log_probs, expected(prompt)) and max(counts) == 8


def test_the_output_of_another_arm_is_no_prompt() -> None:
    executor = make_executor(RecordingEngine(64))
    prompt, known = [1, 2, 3, 1, 2], [4, 5]

    async def ask(executor: Executor) -> Output:
        return await executor.complete(request([*prompt, *known], prompt_length=len(prompt)))

    assert same(run([executor], lambda: ask(executor)).prompt_log_probs, expected(prompt))


def test_they_need_the_number_of_alternatives() -> None:
    executor = make_executor(RecordingEngine(64))
    with pytest.raises(InvalidRequestError, match="need those of the output"):
        executor.check(request([1, 2], num_log_probs=None))


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.integers(0, 20))
def test_the_likeliest_are_those_of_a_stable_sort(values: list[int], count: int) -> None:
    row = np.array(values, np.float32)
    count = min(count, len(values))
    found = LogProbs.of(row[np.newaxis], np.zeros(1, np.int32), count).top_ids[0]
    assert found.tolist() == np.argsort(-row, kind="stable")[:count].tolist()
