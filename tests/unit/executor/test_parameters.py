"""Tests of every request parameter, with and without speculation, on an engine that checks its cache."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipelines.errors import EngineFailedError, InvalidRequestError
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.loop import Round, speculate
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.text.guides import GrammarCompiler, Guide
from tests.support.examples import examples
from tests.support.recording_engine import (
    NUM_BLOCKS,
    VOCAB_SIZE,
    RecordingEngine,
    draft_and_target,
    letters,
    make_executor,
    request,
    run,
    tokens_of,
)

# Token i spells the i-th letter; token 0 ends the output and spells nothing.
WORDS = st.lists(st.text("abcdefghijklmno", min_size=1, max_size=3).map(str.encode), max_size=3).map(tuple)
BIAS = st.dictionaries(st.integers(0, 15), st.floats(-3, 3), max_size=3).map(
    lambda items: tuple(items.items())
)
GRAMMARS = GrammarCompiler(letters(), VOCAB_SIZE, lambda: lambda text: letters().spell(text.encode()))
GUIDES = st.sampled_from(
    [
        Guide("regex", "[a-o]*"),
        Guide("regex", "(abc|d[e-h]|ooo)*"),
        Guide("regex", "([a-f]{2,5}no)+"),
        Guide("choice", '["ab", "abcdefghij", "mmmm"]'),
        Guide("lark_grammar", 'start: "k" inner "k"\ninner: "l" inner "m" | /[a-c]+/'),
    ]
)


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    """Draw any combination that a request may have."""
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.0, 0.5, 0.8, 1.0, 1.5])),
        top_k=draw(st.sampled_from([0, 0, 1, 5, 12])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.5, 0.9])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 0.3])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 0.8, 1.3])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, -1.0, 1.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, -0.5, 0.7])),
        min_tokens=draw(st.sampled_from([0, 0, 5, 20])),
        logit_bias=draw(BIAS),
        seed=draw(st.integers(0, 2**64 - 1)),
    )


@st.composite
def requests(draw: st.DrawFn, shared: Sequence[int] = ()) -> GenerationRequest:
    return request(
        [*shared, *draw(st.lists(st.integers(1, 15), min_size=1, max_size=20))],
        draw(st.integers(1, 40)),
        sampling=draw(sampling_params()),
        stop_words=draw(WORDS),
        bad_words=draw(WORDS),
        num_log_probs=draw(st.sampled_from([None, 0, 3])),
        end_ids=draw(st.sampled_from([(), (0,), (7,), (7, 0)])),
        grammar=draw(st.none() | GUIDES.map(GRAMMARS.compile)),
    )


Answer = Output | InvalidRequestError


def alone(req: GenerationRequest, attention: str = "openvino") -> Answer:
    target = make_executor(RecordingEngine(NUM_BLOCKS, attention=attention))

    async def answer() -> Answer:
        try:
            return await target.complete(req)
        except InvalidRequestError as error:  # bad words and the grammar may forbid every token
            return error

    return run([target], answer)


def joined(rounds: list[Round]) -> Output:
    parts = [part.log_probs for part in rounds if part.log_probs is not None]
    return Output(
        np.array(tokens_of(rounds), np.int32),
        rounds[-1].finish_reason,
        is_final=True,
        log_probs=LogProbs.concatenate(parts) if parts else None,
    )


def bits(output: Answer) -> tuple[Any, ...]:
    """Return everything that must be equal, floats as bits."""
    if isinstance(output, InvalidRequestError):
        return ("refused", str(output))
    log_probs = output.log_probs
    if log_probs is None:
        return output.token_ids.tolist(), output.finish_reason
    return (
        output.token_ids.tolist(),
        output.finish_reason,
        log_probs.token_log_probs.tobytes(),
        log_probs.top_ids.tolist(),
        log_probs.top_log_probs.tobytes(),
    )


@examples(80)
@given(data=st.data())
def test_any_combination_of_parameters_is_answered_as_by_the_target_alone(data: st.DataObject) -> None:
    """The runs include shared prefixes, batch mates, preemption, eviction, cancellation, split verifications.

    Log probabilities are equal in bits.
    """
    num_blocks = data.draw(st.integers(26, 60), label="blocks")
    shared = data.draw(st.lists(st.integers(1, 15), max_size=14), label="shared prefix")
    asked = data.draw(st.lists(requests(shared), min_size=1, max_size=8), label="requests")
    lengths = [data.draw(st.integers(0, 6)) for _ in asked]
    are_cancelled = [data.draw(st.integers(0, 5)) == 0 for _ in asked]
    attention = data.draw(st.sampled_from(["openvino", "draftproof"]))
    draft = make_executor(RecordingEngine(num_blocks, salt=1, agreement=11, role="draft"), num_blocks)
    engine = RecordingEngine(num_blocks, attention=attention)
    target = make_executor(engine, num_blocks, max_num_tokens=data.draw(st.integers(8, 32)))

    async def one(req: GenerationRequest, length: int, is_cancelled: bool) -> Answer | None:
        await asyncio.sleep(0.0005 * (length % 3))
        parts = []
        loop = speculate(
            req, draft.complete, target.complete, FixedDraftLength(length), stream=target.generate
        )
        try:
            async with aclosing(loop):
                async for part in loop:
                    parts.append(part)
                    if is_cancelled:
                        return None
            return joined(parts)
        except InvalidRequestError as error:
            return error

    async def everyone() -> list[Answer | None]:
        return list(await asyncio.gather(*map(one, asked, lengths, are_cancelled)))

    for req, answer in zip(asked, run([draft, target], everyone), strict=True):
        assert answer is None or bits(answer) == bits(alone(req, attention))
    for executor in (draft, target):
        assert executor.scheduler.num_free_blocks == executor.scheduler.num_blocks
        assert executor.scheduler.num_running == executor.scheduler.num_waiting == 0


@examples(40)
@given(req=requests(), length=st.integers(0, 6))
def test_the_ratio_rule_answers_all_combinations_in_its_limits(req: GenerationRequest, length: int) -> None:
    """Its tokens are another sample; the request's bans and counts still hold."""
    draft, target = draft_and_target()

    async def rounds() -> list[Round]:
        loop = speculate(
            req, draft.complete, target.complete, FixedDraftLength(length), use_draft_logits=True
        )
        with suppress(InvalidRequestError):  # bad words and the grammar may forbid every token
            return [part async for part in loop]
        return []

    found = run([draft, target], rounds)
    assume(found)
    answer = joined(found)
    text = target.vocabulary.join(answer.token_ids.tolist())
    assert not any(word in text for word in req.bad_words)
    assert not {*req.end_ids} & {*answer.token_ids.tolist()}
    assert len(answer.token_ids) <= req.max_tokens
    if answer.finish_reason == "stop" and req.grammar is None:  # a grammar may leave nothing to add
        assert len(answer.token_ids) >= req.sampling.min_tokens
    if req.sampling.is_greedy:
        assert bits(answer) == bits(alone(req))
    if req.num_log_probs is not None:
        assert answer.log_probs is not None and len(answer.log_probs.token_log_probs) == len(answer.token_ids)


@pytest.mark.parametrize(
    "fields",
    [
        {"num_log_probs": 21},
        {"num_log_probs": -1},
        {"max_tokens": 0},
        {"max_tokens": -5},
        {"input_ids": np.array([1, 99], np.int32)},
        {"input_ids": np.array([1, -1], np.int32)},
        {"prompt_length": 2},
        {"stop_words": (b"",)},
        {"bad_words": (b"",)},
        {"end_ids": (0, VOCAB_SIZE)},
        {"draft_logits": np.zeros((1, VOCAB_SIZE), np.float32)},
        {"draft_input_ids": np.ones(2, np.int32), "draft_logits": np.zeros((1, VOCAB_SIZE), np.float32)},
        {"draft_input_ids": np.ones(1, np.int32), "draft_logits": np.zeros((1, 3), np.float32)},
        {"sampling": SamplingParams(temperature=float("nan"))},
        {"sampling": SamplingParams(temperature=-1)},
        {"sampling": SamplingParams(top_p=0)},
        {"sampling": SamplingParams(top_k=-1)},
        {"sampling": SamplingParams(min_p=1.5)},
        {"sampling": SamplingParams(repetition_penalty=0.0)},
        {"sampling": SamplingParams(presence_penalty=2.1)},
        {"sampling": SamplingParams(frequency_penalty=float("nan"))},
        {"sampling": SamplingParams(min_tokens=-1)},
        {"sampling": SamplingParams(logit_bias=((VOCAB_SIZE, 1.0),))},
        {"sampling": SamplingParams(logit_bias=((1, 1.0), (1, 2.0)))},
        {"sampling": SamplingParams(logit_bias=((1, 101.0),))},
    ],
)
def test_what_has_no_meaning_is_refused_before_it_takes_a_place(fields: dict[str, Any]) -> None:
    target = make_executor(RecordingEngine(NUM_BLOCKS))
    with pytest.raises(InvalidRequestError) as refused:
        target.check(replace(request([1]), **fields))
    error = refused.value
    assert error.message and error.remedy


def test_logits_that_are_no_numbers_fail_their_request_and_no_other() -> None:
    class OverflowsOnce(RecordingEngine):
        def step(self, inputs: Any) -> Any:
            logits = super().step(inputs).copy()
            if self.num_steps == 1:
                logits[0] = np.nan
            return logits

    target = make_executor(OverflowsOnce(NUM_BLOCKS))
    good = request([3, 4], 3)

    async def both() -> list[Any]:
        asked = (target.complete(req) for req in (request([1, 2], 3), good))
        return await asyncio.gather(*asked, return_exceptions=True)

    failed, answered = run([target], both)
    assert isinstance(failed, EngineFailedError) and "not finite" in str(failed)
    assert bits(answered) == bits(alone(good))
    assert target.scheduler.num_free_blocks == target.scheduler.num_blocks


def test_logits_of_a_proposal_are_those_its_tokens_were_chosen_from() -> None:
    req = request([1, 2, 3], 5, end_ids=(), return_generation_logits=True)
    answer = alone(req)
    assert answer.generation_logits is not None and answer.generation_logits.shape == (5, VOCAB_SIZE)
    assert answer.generation_logits.argmax(axis=1).tolist() == answer.token_ids.tolist()
    assert alone(replace(req, return_generation_logits=False)).generation_logits is None
