"""Tests of answers whose grammars run out of room: neither drafts nor other requests end them."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from pipelines.errors import InvalidRequestError
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.text import guides as guides_module
from pipelines.text.grammar import RequestGrammar
from pipelines.text.guides import GrammarCompiler, Guide
from tests.support.recording_engine import (
    VOCAB_SIZE,
    RecordingEngine,
    letters,
    make_executor,
    request,
    run,
    tokens_of,
)

GUIDE = Guide("regex", "[ab]*a[ab]{14}c[ab]*")
"""Its lexer needs more states with every "a"."""


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> GrammarCompiler:
    monkeypatch.setattr(guides_module, "_MOST_SHARED_STATES", 80)
    monkeypatch.setattr(guides_module, "MAX_LEXER_STATES", 80)
    return GrammarCompiler(letters(), VOCAB_SIZE, lambda: lambda text: letters().spell(text.encode()))


def guided(compiler: GrammarCompiler, seed: int) -> GenerationRequest:
    sampling = SamplingParams(temperature=1.5, seed=seed)
    return request([3, 4, 5], 60, sampling=sampling, grammar=compiler.compile(GUIDE))


def alone(asked: GenerationRequest) -> Output | InvalidRequestError:
    target = make_executor(RecordingEngine(64))

    async def answer() -> Output | InvalidRequestError:
        try:
            return await target.complete(asked)
        except InvalidRequestError as error:
            return error

    return run([target], answer)


def use_up(compiler: GrammarCompiler) -> None:
    """Write another answer with the guide until its lexer has no room."""
    grammar = compiler.compile(GUIDE)
    rng = np.random.default_rng(1)
    walk = np.empty(0, np.int32)
    with pytest.raises(InvalidRequestError):
        while True:
            grammar.mask_after(walk)
            walk = np.append(walk, rng.integers(1, 3)).astype(np.int32)


def test_an_answer_goes_on_whose_guide_another_request_has_used_up(compiler: GrammarCompiler) -> None:
    expected = alone(guided(compiler, 7))
    assert isinstance(expected, Output)
    asked = guided(compiler, 7)
    use_up(compiler)
    found = alone(asked)
    assert isinstance(found, Output)
    assert found.token_ids.tolist() == expected.token_ids.tolist()


def test_rejected_drafts_do_not_end_an_answer(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft that is always wrong walks where the target alone does not."""
    expected = alone(guided(compiler, 7))
    assert isinstance(expected, Output)
    num_renewals = 0
    renew = RequestGrammar.renew

    def counted(grammar: RequestGrammar) -> None:
        nonlocal num_renewals
        num_renewals += 1
        renew(grammar)

    monkeypatch.setattr(RequestGrammar, "renew", counted)
    asked = guided(compiler, 7)
    rng = np.random.default_rng(1)

    async def wrong(asked: GenerationRequest) -> Output:
        assert asked.grammar is not None
        proposal = rng.integers(1, 3, asked.max_tokens).astype(np.int32)
        with suppress(InvalidRequestError):  # as it looks for what it may propose
            for size in range(len(proposal)):
                state = asked.grammar.after(
                    np.concatenate((asked.input_ids[asked.num_prompt_tokens :], proposal[:size]))
                )
                state.allowed()
        return Output(proposal, "length", is_final=True)

    target = make_executor(RecordingEngine(64))

    async def answer() -> list[int]:
        rounds = speculate(asked, wrong, target.complete, FixedDraftLength(4), stream=target.generate)
        return tokens_of([each async for each in rounds])

    assert run([target], answer) == expected.token_ids.tolist()
    assert num_renewals > 1
