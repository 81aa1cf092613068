"""A trained head reads the target's state of each known position, and its own output behind them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pipelines.errors import InternalError
from pipelines.executor.batch_class import BatchClass
from pipelines.executor.executor import Executor
from pipelines.executor.states import ReturnedStates
from pipelines.executor.step import Chunk, StepInputs, pack
from pipelines.speculation.draft_length.draft_plan import DraftPlan, FixedDraftLength
from pipelines.speculation.loop import Round, _UnreadStates, speculate
from pipelines.speculation.request import MAX_STATES, GenerationRequest, Output
from pipelines.speculation.watched_draft import WatchedDraft
from tests.support.recording_engine import (
    _DECODED,
    BLOCK_SIZE,
    NUM_BLOCKS,
    VOCAB_SIZE,
    RecordingEngine,
    alone,
    make_executor,
    request,
    run,
    tokens_of,
)

_GIVEN, _DRAFTED = 1.0, 2.0
_LENGTH = 4
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]


def rows_of(inputs: StepInputs) -> list[tuple[int, npt.NDArray[np.int32]]]:
    """Return the position and the blocks of each token of a step."""
    found = []
    spans = zip(inputs.subsequence_begins, inputs.subsequence_begins[1:], strict=False)
    for index, (begin, end) in enumerate(spans):
        first, last = inputs.block_indices_begins[index : index + 2]
        found += [
            (int(inputs.position_ids[row]), inputs.block_indices[first:last]) for row in range(begin, end)
        ]
    return found


class StatesTarget(RecordingEngine):
    """Returns for each token its position and itself as its state."""

    def __init__(self, num_blocks: int = NUM_BLOCKS) -> None:
        super().__init__(num_blocks, attention="draftproof")
        self.config = replace(self.config, feature_layers=(0,), hidden_size=2)

    def step(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        self.states = np.stack((inputs.position_ids, inputs.input_ids), 1).astype(np.float32)
        return super().step(inputs)


class Head(RecordingEngine):
    """Predicts as the target, from a context that it can only know from correct states.

    It caches the state with each token, refuses one that belongs to another position or token, and refuses a
    context in which a known position was computed from its own output.
    """

    def __init__(self, num_blocks: int = NUM_BLOCKS, agreement: int = 13) -> None:
        super().__init__(num_blocks, role="draft", attention="draftproof", salt=1, agreement=agreement)
        self.config = replace(self.config, feature_layers=(0,), hidden_size=2, reads_features=True)
        self.cached = np.zeros((num_blocks, BLOCK_SIZE, 4))  # state, kind, number of the output
        self.begins: list[int] = []
        self.faults: list[Exception] = []
        self.num_outputs = 0

    def step(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        try:
            return self._step(inputs)
        except (AssertionError, IndexError) as error:  # the loop would go on without the draft
            self.faults.append(error)
            raise

    def _step(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        features = np.empty((0, 2)) if inputs.features is None else inputs.features
        hidden = np.empty((0, 2)) if inputs.hidden is None else inputs.hidden
        read = np.concatenate((features, hidden))[inputs.hidden_rows]
        kinds = np.where(inputs.hidden_rows < len(features), _GIVEN, _DRAFTED)
        places = rows_of(inputs)
        for (position, blocks), token, state, kind in zip(places, inputs.input_ids, read, kinds, strict=True):
            place = blocks[position // BLOCK_SIZE], position % BLOCK_SIZE
            self.num_outputs += 1
            self._tokens[place] = token
            self.cached[place] = (*state, kind, self.num_outputs)
        self.states = np.zeros((len(inputs.logits_rows), 2), np.float32)
        logits = np.empty((len(inputs.logits_rows), VOCAB_SIZE), np.float32)
        for index, row in enumerate(inputs.logits_rows):
            position, blocks = places[row]
            logits[index] = self._predict(
                self._tokens[blocks].ravel()[: position + 1],
                self.cached[blocks].reshape(-1, 4)[: position + 1],
            )
            self.states[index] = self.cached[blocks].reshape(-1, 4)[position, 3]
        self.num_steps += 1
        return logits

    def _predict(self, tokens: npt.NDArray[np.int64], cached: npt.NDArray[np.float64]) -> Any:
        num_given = int(np.argmax(np.append(cached[:, 2], _DRAFTED) == _DRAFTED))
        assert (cached[num_given:, 2] == _DRAFTED).all(), "a known position kept what was drafted"
        assert len(tokens) - num_given < _LENGTH
        begin = int(cached[0, 0])
        self.begins.append(begin)
        given = cached[:num_given, :2]
        stands_in = np.append((given[1:] == given[:-1]).all(axis=1), False)
        assert stands_in.sum() <= 1
        is_read = (np.arange(num_given) > 0) & ~stands_in
        assert given[is_read, 1].tolist() == tokens[np.flatnonzero(is_read) - 1].tolist()
        if begin == 0:  # other contexts share what they cache with those that begin with the same tokens
            assert given[is_read, 0].tolist() == np.flatnonzero(is_read).tolist()
        assert cached[num_given:, 0].tolist() == cached[num_given - 1 : -1, 3].tolist(), "not its own output"
        text = np.append(int(cached[0, 1]), tokens)
        return self._logits(text.tobytes() + np.full(len(text), _DECODED).tobytes())

    def copy_block(self, source: int, destination: int) -> None:
        super().copy_block(source, destination)
        self.cached[destination] = self.cached[source]


def pair(num_blocks: int = NUM_BLOCKS, **limits: int) -> tuple[Executor, Executor]:
    return make_executor(Head(), num_blocks), make_executor(StatesTarget(), num_blocks, **limits)


class Adaptive(FixedDraftLength):
    """Asks for gaps, as the adaptive length does: such proposals go on without a plan."""

    def next_round(self, num_remaining: int) -> DraftPlan:
        return replace(super().next_round(num_remaining), keep_drafting=lambda gap: True)


def answer(
    executors: tuple[Executor, Executor],
    *requests: GenerationRequest,
    length: type[FixedDraftLength] = FixedDraftLength,
) -> list[list[Round]]:
    """Answer concurrently, and assert that the head was given what belongs to each token, once."""
    draft, target = executors
    watched = WatchedDraft(draft.complete)

    async def answered(asked: GenerationRequest) -> list[Round]:
        counts: list[int] = []

        async def drafted(wanted: GenerationRequest) -> Output:
            counts.append(sum(map(len, wanted.target_states.parts)))
            return await watched(wanted)

        rounds = speculate(asked, drafted, target.complete, length(_LENGTH), stream=target.generate)
        found = [part async for part in rounds]
        assert max(counts[1:], default=0) <= 2 * _LENGTH, "of two rounds, where the last one does not draft"
        return found

    async def all_answered() -> list[list[Round]]:
        return await asyncio.gather(*map(answered, requests))

    found = run([draft, target], all_answered)
    assert not draft.engine.faults and not watched.num_refusals
    return found


@pytest.mark.parametrize("length", [FixedDraftLength, Adaptive])
@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:1], PROMPT[:2], PROMPT * 4])
def test_a_head_drafts_from_the_states_of_its_text(prompt: list[int], length: type[FixedDraftLength]) -> None:
    executors = pair()
    asked = request(prompt, executors[0].limits.max_seq_len - len(prompt))  # as long as a text can be
    [rounds] = answer(executors, asked, length=length)
    assert tokens_of(rounds) == alone(asked, "draftproof")
    assert sum(part.num_accepted_tokens for part in rounds) > 10
    assert set(executors[0].engine.begins) == {0}


@pytest.mark.parametrize("length", [FixedDraftLength, Adaptive])
def test_concurrent_requests_share_the_steps_of_a_head(length: type[FixedDraftLength]) -> None:
    requests = [request(PROMPT[: 3 + number], 24) for number in range(6)]
    executors = pair()
    for asked, rounds in zip(requests, answer(executors, *requests, length=length), strict=True):
        assert tokens_of(rounds) == alone(asked, "draftproof")
        assert sum(part.num_accepted_tokens for part in rounds) > 4


def test_a_prompt_in_short_chunks_reads_its_own_states(monkeypatch: pytest.MonkeyPatch) -> None:
    executors = make_executor(Head(), max_num_tokens=64), make_executor(StatesTarget(), max_num_tokens=128)
    # The head stays so slow that a step has part of a long prompt and part of another behind it.
    budget = executors[0].scheduler.chunk_budget
    monkeypatch.setattr(budget, "_units_per_s", 40.0)
    monkeypatch.setattr(budget, "note", lambda step, seconds: None)
    prompts = PROMPT, PROMPT[::-1] * 5, PROMPT * 3, PROMPT[4:] * 5
    requests = [request(prompt, 16) for prompt in prompts]
    for asked, rounds in zip(requests, answer(executors, *requests), strict=True):
        assert tokens_of(rounds) == alone(asked, "draftproof")
        assert sum(part.num_accepted_tokens for part in rounds) > 4


@pytest.mark.parametrize(
    "changed",
    [
        {"features": np.zeros((3, 2), np.float32)},
        {"features": None, "hidden": np.zeros((1, 2), np.float32)},
        {"features": None},
        {"num_logits": 3},
        {"start": 7},
        {"token_ids": np.zeros(0, np.int32), "num_logits": 0},
    ],
)
def test_a_chunk_with_more_or_less_than_its_tokens_need_is_not_packed(changed: dict[str, Any]) -> None:
    states = np.zeros((2, 2), np.float32)
    whole = Chunk(np.array([5, 6], np.int32), 6, (1, 2), is_decode=True, num_logits=2, features=states)
    pack([whole, whole], BLOCK_SIZE)
    with pytest.raises(InternalError, match="do not fit together"):
        pack([whole, replace(whole, **changed)], BLOCK_SIZE)


def test_a_further_turn_continues_the_context_of_the_one_before() -> None:
    executors = pair()
    [first] = answer(executors, request(PROMPT, 20))
    turn = PROMPT + tokens_of(first) + [3, 1, 4]
    computed = executors[0].engine.num_outputs
    [second] = answer(executors, request(turn, 12))
    assert tokens_of(second) == alone(request(turn, 12), "draftproof")
    assert set(executors[0].engine.begins) == {0}
    assert executors[0].engine.num_outputs - computed < len(turn) + 12 * _LENGTH


@pytest.mark.parametrize("num_shared", [5, 8, 9])
def test_a_prompt_that_shares_a_beginning_keeps_its_context(num_shared: int) -> None:
    executors = pair()
    answer(executors, request(PROMPT, 8))
    asked = request([*PROMPT[:num_shared], 14, 15, 2, 9], 16)
    [rounds] = answer(executors, asked)
    assert tokens_of(rounds) == alone(asked, "draftproof")
    assert set(executors[0].engine.begins) == {0}


def test_a_head_begins_where_the_states_begin_if_it_lacks_what_the_target_has_cached() -> None:
    executors = pair()
    run([executors[1]], lambda: executors[1].complete(request(PROMPT * 2, 1)))
    asked = request(PROMPT * 2 + [5, 3, 5], 12)
    [rounds] = answer(executors, asked)
    assert tokens_of(rounds) == alone(asked, "draftproof")
    begins = set(executors[0].engine.begins)
    assert len(begins) == 1 and 0 < min(begins) <= 2 * len(PROMPT), "every round continues one context"


@pytest.mark.parametrize("length", [FixedDraftLength, Adaptive])
def test_a_head_without_room_ends_its_proposal(
    length: type[FixedDraftLength], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []
    preempt = BatchClass._preempt
    monkeypatch.setattr(
        BatchClass, "_preempt", lambda self, each: ended.append(each.num_output) or preempt(self, each)
    )
    requests = [request(PROMPT[: 5 + number], 50) for number in range(4)]
    executors = make_executor(Head(), 25, max_seq_len=64), make_executor(StatesTarget(128), 128)
    for asked, rounds in zip(requests, answer(executors, *requests, length=length), strict=True):
        assert tokens_of(rounds) == alone(asked, "draftproof")
        assert max(part.num_draft_tokens for part in rounds) <= _LENGTH
    assert any(ended)


def test_a_head_reads_the_rest_of_an_answer_that_an_end_token_ends() -> None:
    written = alone(request(PROMPT, 20), "draftproof")
    for end_id in set(written):
        executors = pair()
        asked = request(PROMPT, 20, end_ids=(end_id,), deadline_s=time.monotonic() + 5)
        [rounds] = answer(executors, asked)
        assert tokens_of(rounds) == written[: written.index(end_id)]
        assert time.monotonic() < asked.deadline_s, "it waited for a step that nothing needs"


def test_states_that_were_returned_may_be_computed_again_in_parts() -> None:
    returned = ReturnedStates()
    for start, end in ((0, 6), (0, 3), (3, 7)):
        returned.add(start, np.arange(start, end, dtype=np.float32)[:, np.newaxis])
        kept = returned.take(end)[:, 0].tolist() if end > 3 else []
    assert kept == [6]


def test_states_of_a_long_prompt_are_those_of_its_end() -> None:
    returned = ReturnedStates()
    for start in range(0, 3000, 100):
        returned.add(start, np.arange(start, start + 100, dtype=np.float32)[:, np.newaxis])
    returned.add(2950, np.full((60, 1), -1, np.float32))  # computed again, then drafted
    kept = returned.take(3004)[:, 0]
    assert kept.tolist() == [*range(3004 - MAX_STATES, 3000), -1, -1, -1, -1]


def test_states_that_the_target_computed_again_are_not_read_twice() -> None:
    def output(num_tokens: int, first: int, end: int) -> Output:
        states = np.arange(first, end, dtype=np.float32)[:, np.newaxis]
        return Output(np.zeros(num_tokens, np.int32), "", is_final=False, states=states)

    unread = _UnreadStates()
    unread.add(output(1, 4, 10), 10)
    unread.add(output(3, 6, 13), 13)
    found = unread.unread()
    assert found is not None and found.begin == 3
    assert found.parts[0] is unread._parts[0], "a call of a paused draft costs a copy"
    assert np.concatenate(found.parts)[:, 0].tolist() == [4, *range(4, 13)]
    for position in range(13, 5000):
        unread.add(output(1, position, position + 1), position + 1)
    found = unread.unread()
    assert np.concatenate(found.parts)[:, 0].tolist() == [*range(5000 - MAX_STATES, 5000)]
