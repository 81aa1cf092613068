"""Tests of drafts in one pass: what they propose, what mask tokens leave, that answers stay exact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipelines.executor.executor import Executor
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.text.guides import GrammarCompiler, Guide
from tests.support.recording_engine import (
    VOCAB_SIZE,
    RecordingEngine,
    alone,
    draft_and_target,
    letters,
    make_executor,
    request,
    rounds_of,
    run,
    tokens_of,
)

MASK = 15
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]


def in_one_pass(executor: Executor) -> Executor:
    """Return the draft, which proposes with mask tokens from now on."""
    executor.config = replace(executor.config, mask_token_id=MASK)
    return executor


def draft() -> Executor:
    return in_one_pass(make_executor(RecordingEngine(64, role="draft")))


def proposal(known: list[int], length: int, **fields: Any) -> GenerationRequest:
    fields = {"prompt_length": len(PROMPT), "keep_drafting": lambda gap: True, **fields}
    return request(known, length, **fields)


def proposed(executor: Executor, asked: GenerationRequest) -> Any:
    return run([executor], lambda: executor.complete(asked))


@pytest.mark.parametrize("length", [1, 2, 4, 8])
def test_all_tokens_are_proposed_in_the_step_that_reads_the_last_round(length: int) -> None:
    executor = draft()
    proposed(executor, proposal([*PROMPT, 7], 1))
    before = executor.num_steps
    output = proposed(executor, proposal([*PROMPT, 7, 8, 9], length))
    assert executor.num_steps == before + 1
    assert 0 < len(output.token_ids) <= length and len(output.gaps) == len(output.token_ids)
    assert len(output.token_ids) == length or output.finish_reason == "stop"


def test_each_row_sees_the_known_tokens_and_the_mask_tokens_before_it() -> None:
    rows = [proposed(draft(), proposal([*PROMPT, 7, *[MASK] * count], 1)).token_ids for count in range(4)]
    output = proposed(draft(), proposal([*PROMPT, 7], 4))
    assert output.token_ids.tolist() == np.concatenate(rows)[: len(output.token_ids)].tolist()
    assert len(output.token_ids) > 1


def test_mask_tokens_leave_nothing_in_the_cache() -> None:
    """The tokens of a round stand where mask tokens stood, a block further, too."""
    executor, known = draft(), [*PROMPT, 7]
    for accepted in ([8], [2, 4, 6], [1, 2, 3, 4, 5, 6]):
        found = proposed(executor, proposal(known, 6))
        cold = proposed(draft(), proposal(known, 6))
        assert found.token_ids.tolist() == cold.token_ids.tolist()
        assert found.gaps.tolist() == cold.gaps.tolist()
        known = [*known, *accepted]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("use_draft_logits", [False, True])
def test_answers_are_those_of_the_target_alone(temperature: float, use_draft_logits: bool) -> None:
    sampling = SamplingParams(temperature=temperature, seed=5)
    draft_executor, target = draft_and_target()
    asked = request(PROMPT, 24, sampling=sampling, end_ids=(0,))
    rounds = run(
        [in_one_pass(draft_executor), target],
        lambda: rounds_of(asked, draft_executor.complete, target, 4, use_draft_logits=use_draft_logits),
    )
    if not (use_draft_logits and temperature):  # else another sample of the same distribution
        assert tokens_of(rounds) == alone(asked)
    assert sum(part.num_draft_tokens for part in rounds) > 0


def test_a_grammar_limits_what_is_proposed_and_does_not_read_mask_tokens() -> None:
    compiler = GrammarCompiler(letters(), VOCAB_SIZE, lambda: lambda text: letters().spell(text.encode()))
    grammar = compiler.compile(Guide("regex", "[a-c]{20}"))
    output = proposed(draft(), proposal([*PROMPT, 2], 6, grammar=grammar, end_ids=(0,)))
    assert len(output.token_ids) > 1 and set(output.token_ids.tolist()) <= {1, 2, 3}
