"""A real target with a recurrent layer: whatever its states went through, its output is a cold one's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipelines.engine_memory import MAX_LOGGED_ROWS
from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.executor.recurrent_states import StateSlots
from pipelines.executor.step import Chunk, pack
from pipelines.speculation.loop import Round
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampling.params import GREEDY, SamplingParams
from tests.support.compiler import needs_compiler
from tests.support.recording_engine import request, rounds_of, run, tokens_of
from tests.support.tiny_engines import build_tiny_pair

_LIMITS = ExecutorLimits(
    max_batch_size=4, max_num_tokens=64, max_seq_len=256, max_queue_size=8, num_kv_blocks=64
)
_NUM_TOKENS = 40

pytestmark = needs_compiler


@pytest.fixture(scope="module", params=["int8, draftproof", "none, openvino"])
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a draft and a target that often agree."""
    quantization, linear = request.param.split(", ")
    kind = {"attention": "draftproof", "linear": linear, "quantization": quantization, "draft": "self"}
    return build_tiny_pair(tmp_path_factory.mktemp("hybrid"), target="hybrid", **kind)


def loaded(directory: Path, **limits: int) -> Executor:
    return Executor.load(directory, replace(_LIMITS, **limits))


def prompts(count: int) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(1, 2000, 1 + 7 * number).tolist() for number in range(count)]


def alone(target: Path, asked: GenerationRequest) -> list[int]:
    executor = loaded(target)
    return run([executor], lambda: executor.complete(asked)).token_ids.tolist()


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=0.7, seed=5)])
@pytest.mark.parametrize("num_kv_blocks", [64, 13], ids=["room for all", "requests are preempted"])
def test_drafts_are_undone(engines: tuple[Path, Path], sampling: SamplingParams, num_kv_blocks: int) -> None:
    draft, target = loaded(engines[0]), loaded(engines[1], num_kv_blocks=num_kv_blocks)
    for executor in (draft, target):
        while executor.engine.compile_small_network():
            executor.engine.adopt_small_networks()
    asked = [request(prompt, _NUM_TOKENS, sampling=sampling) for prompt in prompts(6)]

    async def answered() -> list[list[Round]]:
        return await asyncio.gather(*(rounds_of(each, draft.complete, target, 4) for each in asked))

    rounds = run([draft, target], answered)
    for each, found in zip(asked, rounds, strict=True):
        assert tokens_of(found) == alone(engines[1], each)
    accepted = [part.num_accepted_tokens for found in rounds for part in found]
    assert {0, 4} < set(accepted), "some drafts are rejected at once, later and never"


def test_a_turn_continues_the_state_of_the_one_before(engines: tuple[Path, Path]) -> None:
    target, prompt = loaded(engines[1]), prompts(4)[3]
    first = run([target], lambda: target.complete(request(prompt, _NUM_TOKENS)))
    text = [*prompt, *first.token_ids.tolist(), 5, 6, 7]
    again = run([target], lambda: target.complete(request(text, _NUM_TOKENS)))
    assert again.num_cached == len(text) - 4, "all but the last token of the answer was computed"
    assert again.token_ids.tolist() == alone(engines[1], request(text, _NUM_TOKENS))
    # That of the answer has moved on, but not that of the prompt.
    other = [*text[:-3], 8, 9]
    later = run([target], lambda: target.complete(request(other, _NUM_TOKENS)))
    assert later.num_cached == len(prompt)
    assert later.token_ids.tolist() == alone(engines[1], request(other, _NUM_TOKENS))


def test_more_texts_than_slots_are_answered_and_the_latest_kept(engines: tuple[Path, Path]) -> None:
    target, texts = loaded(engines[1], max_batch_size=2, max_queue_size=32), prompts(9)[2:]
    asked = [request(text, 9) for text in texts]

    async def answered() -> list[list[int]]:
        found = await asyncio.gather(*(target.complete(each) for each in asked))
        return [each.token_ids.tolist() for each in found]

    answers = run([target], answered)
    assert answers == [alone(engines[1], each) for each in asked]
    turn = request([*texts[-1], *answers[-1], 5, 6], 3)
    assert run([target], lambda: target.complete(turn)).num_cached > 0


def test_short_requests_to_the_target_alone_leave_rounds_their_states(engines: tuple[Path, Path]) -> None:
    limits = replace(_LIMITS, max_batch_size=1)
    target, rng, found = (
        Executor.load(engines[1], limits, num_classes=2),
        np.random.default_rng(7),
        list[int](),
    )
    prompt = prompts(4)[3]

    async def rounds() -> None:
        known = prompt
        for _ in range(12):
            drafts = np.array([3, 4], np.int32)
            verified = request(known, 20, prompt_length=len(prompt), draft_input_ids=drafts)
            output = await target.complete(verified)
            found.append(output.num_cached)
            known = [*known, *output.token_ids.tolist()]

    async def short_requests() -> None:
        while len(found) < 12:
            async for _ in target.generate(request(rng.integers(1, 2000, 9).tolist(), 1), 1):
                pass

    async def both() -> None:
        await asyncio.gather(rounds(), short_requests())

    run([target], both)
    assert found == [0, *[len(prompt)] * 11]


def test_a_state_that_cannot_be_continued_costs_no_other_its_cached_block(engines: tuple[Path, Path]) -> None:
    target = Executor.load(engines[1], _LIMITS, num_classes=2)

    def answered(text: list[int], class_number: int) -> Output:
        async def outputs() -> Output:
            asked = request(text, 5)
            return Output.joined([output async for output in target.generate(asked, class_number)])

        return run([target], outputs)

    turn = prompts(6)[5]
    text = [*turn, *answered(turn, 1).token_ids.tolist(), 5, 6, 7]
    answered(text, 0)  # a longer state, whose keys and values are in the cache of the other class
    assert answered([*text, 8, 9], 1).num_cached == len(text) - 4


def test_a_cancelled_request_leaves_a_state_that_fits_its_tokens(engines: tuple[Path, Path]) -> None:
    target, text = loaded(engines[1]), prompts(4)[3]

    async def cancelled() -> list[int]:
        found: list[int] = []
        async for output in target.generate(request(text, _NUM_TOKENS)):
            found += output.token_ids.tolist()
            if len(found) > 5:
                break
        return found

    found = run([target], cancelled)
    turn = request([*text, *found, 5, 6], _NUM_TOKENS)
    assert run([target], lambda: target.complete(turn)).token_ids.tolist() == alone(engines[1], turn)


def test_draft_tokens_that_do_not_fit_the_log_are_refused(engines: tuple[Path, Path]) -> None:
    target, text = loaded(engines[1]), prompts(4)[3]
    most = request(text, _NUM_TOKENS, draft_input_ids=np.arange(MAX_LOGGED_ROWS - 1, dtype=np.int32))
    assert run([target], lambda: target.complete(most)).num_verified == MAX_LOGGED_ROWS - 1
    more = request(text, _NUM_TOKENS, draft_input_ids=np.arange(MAX_LOGGED_ROWS, dtype=np.int32))
    with pytest.raises(Exception, match="draft tokens"):
        run([target], lambda: target.complete(more))


def test_a_step_that_forgets_its_slots_is_refused(engines: tuple[Path, Path]) -> None:
    engine, token_ids = loaded(engines[1]).engine, np.arange(9, dtype=np.int32)
    given = Chunk(token_ids, 0, (1,), is_decode=False, num_logits=1, slot=0)
    for chunks in ([replace(given, slot=None)], [given, replace(given, slot=None, blocks=(2,))]):
        with pytest.raises(ValueError, match="slots"):
            engine.step(pack(chunks, engine.config.kv_block_size))


def test_a_text_is_kept_once() -> None:
    slots, text = StateSlots(3, lambda *_: None), np.arange(10, dtype=np.int32)
    older, newer = slots.take(), slots.take()
    slots.keep(older, text, "")
    slots.keep(newer, text, "")
    assert list(slots.continued(text, "")) == [newer]
    assert sorted(slots.take().slot for _ in range(3)) == [0, 1, 2], "no slot is lost or given twice"


def test_the_longest_kept_beginning_comes_first_and_the_oldest_goes() -> None:
    copied: list[tuple[int, int]] = []
    slots, text = StateSlots(3, lambda *pair: copied.append(pair)), np.arange(10, dtype=np.int32)
    taken = [slots.take() for _ in range(3)]
    for state, length in zip(taken, (4, 7, 6), strict=True):
        slots.keep(state, text[:length] if length != 6 else text[1:], "")
    assert [len(state.token_ids) for state in slots.continued(text[:9], "")] == [7, 4]
    assert [len(state.token_ids) for state in slots.continued(text[:6], "")] == [4]
    assert slots.take().slot == taken[0].slot
    assert slots.take(taken[1]) is taken[1]
    slots.drop(taken[1])
    slots.keep_copy(taken[0], text[:2], "")
    assert copied == [(taken[0].slot, taken[1].slot)]
    assert [each.slot for each in slots.continued(text, "")] == [taken[1].slot]
    assert slots.take().slot == taken[2].slot
