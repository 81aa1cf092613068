"""Tests of a draft that reads tokens of its own: translation, reuse of its cache, and what it refuses."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import PromptTooLongError
from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.speculation.watched_draft import WatchedDraft
from pipelines.text.guides import GrammarCompiler, Guide
from pipelines.text.token_map import TokenMap
from tests.support.examples import examples
from tests.support.recording_engine import (
    VOCAB_SIZE,
    RecordingEngine,
    alone,
    letters,
    make_executor,
    request,
    rounds_of,
    run,
    tokens_of,
)

NUM_BLOCKS = 64
NEVER = (3, 7, 12)  # tokens that the draft lacks: it reads them as two, three and no tokens of its own


def token_map() -> TokenMap:
    draft_ids = [[100 + token_id] for token_id in range(VOCAB_SIZE)]
    draft_ids[3], draft_ids[7], draft_ids[12] = [201, 202], [203, 204, 205], []
    begins = np.cumsum([0, *map(len, draft_ids)])
    return TokenMap(
        np.array([99], np.int32), np.array(list(chain.from_iterable(draft_ids)), np.int32), begins
    )


class PartlySharedEngine(RecordingEngine):
    """Reads the draft's ids only, and never proposes tokens that the draft lacks."""

    def step(self, inputs: Any) -> npt.NDArray[np.float32]:
        ids = inputs.input_ids
        assert ((ids >= 99) | (ids == 0)).all(), "0 fills up a step"
        return super().step(inputs)

    def _logits(self, context: bytes) -> npt.NDArray[np.float32]:
        logits = super()._logits(context)
        logits[list(NEVER)] = -np.inf
        return logits


def draft_executor(engine: RecordingEngine | None = None, **limits: int) -> Executor:
    defaults = {"max_batch_size": 8, "max_num_tokens": 32, "max_seq_len": 96, "max_queue_size": 16}
    engine = engine or PartlySharedEngine(NUM_BLOCKS, role="draft")
    sizes = ExecutorLimits(**{**defaults, **limits}, num_kv_blocks=NUM_BLOCKS)
    return Executor(engine, letters(), sizes, token_map())


@examples(40)
@given(data=st.data())
def test_the_answer_is_the_targets_own(data: st.DataObject) -> None:
    prompt = data.draw(st.lists(st.integers(1, VOCAB_SIZE - 1), min_size=1, max_size=20))
    sampling = SamplingParams(temperature=data.draw(st.sampled_from([0.0, 0.9])), seed=3)
    words = data.draw(st.sampled_from([{}, {"stop_words": (b"cd",)}, {"bad_words": (b"b", b"ka")}]))
    req = request(prompt, 24, sampling=sampling, end_ids=(0,), **words)
    draft, target = draft_executor(), make_executor(RecordingEngine(NUM_BLOCKS))
    rounds = run([draft, target], lambda: rounds_of(req, draft.complete, target, 4))
    assert tokens_of(rounds) == alone(req)


def test_the_draft_reads_each_position_once() -> None:
    engine = PartlySharedEngine(NUM_BLOCKS, role="draft")
    draft, target = draft_executor(engine), make_executor(RecordingEngine(NUM_BLOCKS))
    prompt = [3, 1, 12, 7, 5, 3]
    req = request(prompt, 30, end_ids=())
    rounds = run([draft, target], lambda: rounds_of(req, draft.complete, target, 4))
    output = tokens_of(rounds)
    assert set(NEVER) & set(output), "some tokens are read as several"
    assert sum(part.num_draft_tokens for part in rounds) > 0
    length = len(token_map().translate_prompt(np.array(prompt + output, np.int32)))
    # Rejected proposals are computed again at the same position, but nothing before them.
    num_rejected = sum(part.num_draft_tokens - part.num_accepted_tokens for part in rounds)
    real = sum(count for position, count in engine.num_computed.items() if position > 0)
    assert real <= length + num_rejected


class KnowingEngine(PartlySharedEngine):
    """Has the logits of the target, for all tokens that it does not lack."""

    def __init__(self, prompt: list[int], answer: list[int]) -> None:
        super().__init__(NUM_BLOCKS, role="draft")
        self._contexts: dict[bytes, bytes] = {}
        for count in range(len(answer)):
            known = np.array(prompt + answer[:count])
            kinds = [1] * len(prompt) + [2] * count
            read = token_map().translate_prompt(known)
            self._contexts[read.astype(int).tobytes()] = np.stack((known, kinds)).tobytes()

    def _logits(self, context: bytes) -> npt.NDArray[np.float32]:
        read = np.frombuffer(context, int).reshape(2, -1)[0]
        return super()._logits(self._contexts.get(read.tobytes(), context))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_noise_and_parameters_are_those_of_the_targets_tokens_and_positions(temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, seed=11, top_k=15, repetition_penalty=1.3)
    prompt = [3, 1, 4, 7, 5]
    unread = letters().join([12])
    req = request(prompt, 60, sampling=sampling, end_ids=(), bad_words=(unread,))
    expected = alone(req)
    assert set(expected) & set(NEVER), "some tokens are read as several"
    draft, target = (
        draft_executor(KnowingEngine(prompt, expected)),
        make_executor(RecordingEngine(NUM_BLOCKS)),
    )
    rounds = run([draft, target], lambda: rounds_of(req, draft.complete, target, 4))
    assert tokens_of(rounds) == expected
    for part in rounds[1:]:
        rejected = part.num_accepted_tokens < part.num_draft_tokens
        assert not rejected or part.token_ids[-1] in NEVER, "only what the draft lacks is rejected"
    assert sum(part.num_accepted_tokens for part in rounds) > 20


def test_a_context_that_is_too_long_for_the_draft_is_answered_without_it() -> None:
    draft, target = draft_executor(), make_executor(RecordingEngine(NUM_BLOCKS))
    watched = WatchedDraft(draft.complete)
    req = request([7] * 40, 20, end_ids=())  # 120 tokens of the draft
    rounds = run([draft, target], lambda: rounds_of(req, watched, target, 4))
    assert tokens_of(rounds) == alone(req)
    assert (watched.num_refusals, watched.num_failures) == (1, 0), "it is asked once, and not paused"
    draft = draft_executor()
    with pytest.raises(PromptTooLongError, match="makes 121 tokens of 40"):
        run([draft], lambda: draft.complete(req))


def test_a_context_without_any_token_of_the_draft_is_refused() -> None:
    silent = TokenMap(np.empty(0, np.int32), np.empty(0, np.int32), np.zeros(VOCAB_SIZE + 1, np.int64))
    draft = draft_executor()
    draft._token_map = silent
    with pytest.raises(PromptTooLongError, match="makes 0 tokens of 2"):
        run([draft], lambda: draft.complete(request([1, 2])))


def test_a_request_that_bans_all_that_the_draft_knows_does_not_pause_it() -> None:
    words = tuple(letters().join([i]) for i in range(1, VOCAB_SIZE) if i not in NEVER)
    draft, target = draft_executor(), make_executor(RecordingEngine(NUM_BLOCKS))
    watched = WatchedDraft(draft.complete)
    req = request([1, 2], 12, bad_words=words, sampling=SamplingParams(min_tokens=12), end_ids=(0,))
    rounds = run([draft, target], lambda: rounds_of(req, watched, target, 4))
    assert tokens_of(rounds) == alone(req) and watched.is_available


def test_a_proposal_ends_before_a_token_that_the_draft_lacks() -> None:
    compiler = GrammarCompiler(letters(), VOCAB_SIZE, lambda: lambda text: letters().spell(text.encode()))
    grammar = compiler.compile(Guide("regex", "[ab]{2}[cg][ab]{20}"))
    req = request([1, 2], 6, grammar=grammar, end_ids=(0,), keep_drafting=lambda gap: True)
    draft = draft_executor()
    assert len(run([draft], lambda: draft.complete(req)).token_ids) == 2


@pytest.mark.parametrize("use_draft_logits", [False, True])
def test_a_place_where_the_grammar_allows_only_what_the_draft_lacks_is_passed(use_draft_logits: bool) -> None:
    compiler = GrammarCompiler(letters(), VOCAB_SIZE, lambda: lambda text: letters().spell(text.encode()))
    grammar = compiler.compile(Guide("regex", "[ab]{6}[cg][ab]{20}"))
    sampling = SamplingParams(temperature=float(use_draft_logits), seed=2)
    req = request([1, 2], 30, grammar=grammar, sampling=sampling, end_ids=(0,))
    draft, target = draft_executor(), make_executor(RecordingEngine(NUM_BLOCKS))
    watched = WatchedDraft(draft.complete)
    rounds = run(
        [draft, target], lambda: rounds_of(req, watched, target, 4, use_draft_logits=use_draft_logits)
    )
    output = tokens_of(rounds)
    assert len(output) == 27 and output[6] in NEVER
    assert use_draft_logits or output == alone(req)
    ends = np.cumsum([len(part.token_ids) for part in rounds])
    later = [part.num_by_model for part, end in zip(rounds, ends, strict=True) if end > 8]
    assert sum(later) > 4 and watched.num_refusals == 0
