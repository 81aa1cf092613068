"""Tests of answers whose grammars run out of room: neither drafts nor other requests end them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest

from pipelines.errors import InvalidRequestError
from pipelines.executor import grammars as grammars_module
from pipelines.executor.grammars import GrammarTurns
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.text import grammar as grammar_module
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


def test_an_answer_with_slow_masks_waits_for_others(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every mask counts as slow, and the next turn is far away; alone, the answer goes on."""
    expected = alone(guided(compiler, 7))
    assert isinstance(expected, Output)
    monkeypatch.setattr(grammar_module, "_USUAL_MASK_S", -1.0)
    monkeypatch.setattr(grammars_module, "_SLOW_SHARE", 1e-9)
    target = make_executor(RecordingEngine(64))
    written: list[str] = []

    async def write(name: str, asked: GenerationRequest) -> list[int]:
        found = []
        async for output in target.generate(asked):
            written.append(name)
            found += output.token_ids.tolist()
        return found

    async def answer() -> list[list[int]]:
        slow = write("slow", guided(compiler, 7))
        return await asyncio.gather(slow, write("other", request([6, 7, 8], 30, end_ids=())))

    assert run([target], answer)[0] == expected.token_ids.tolist()
    last = len(written) - 1 - written[::-1].index("other")
    assert written.count("slow") > 10 and written[:last].count("slow") <= 3


def test_slow_masks_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = [0.0]
    monkeypatch.setattr(grammars_module, "time", SimpleNamespace(monotonic=lambda: times_s[-1]))
    turns = GrammarTurns()

    class Slow:
        def __init__(self, slow_s: float | None) -> None:
            self.asked = SimpleNamespace(grammar=None if slow_s is None else SimpleNamespace(slow_s=slow_s))

    first, second, *others = running = [Slow(each) for each in (0.01, 0.03, 0.0, None)]
    found = []
    for each_s in (0.0, 0.05, 0.11, 0.3, 0.42):
        times_s.append(each_s)
        resting = turns.resting(running)  # type: ignore[arg-type]
        assert not resting.intersection(others)  # type: ignore[arg-type]
        found.append([each for each in (first, second) if each not in resting])  # type: ignore[comparison-overlap]
    assert found == [[first], [], [second], [], [first]]
    assert not turns.resting([first, second])  # type: ignore[list-item]
