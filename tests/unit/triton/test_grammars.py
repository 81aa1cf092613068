"""Tests of compiling guides for requests: each after a trial, each once, for as long as somebody waits."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from pipelines.errors import InvalidRequestError
from pipelines.text.guides import GrammarCompiler, Guide
from pipelines.triton.engine.grammars import Grammars
from tests.support.recording_engine import VOCAB_SIZE, letters


class SlowCompiler(GrammarCompiler):
    """Compiles a guide only when it may; counts."""

    def __init__(self) -> None:
        super().__init__(letters(), VOCAB_SIZE, lambda: lambda text: letters().spell(text.encode()))
        self.may_end = threading.Event()
        self.num_begun: Counter[str] = Counter()

    def compile(self, guide: Guide) -> Any:
        self.num_begun[guide.text] += 1
        assert self.may_end.wait(120)
        return super().compile(guide)


@pytest.fixture
def compiler() -> Iterator[SlowCompiler]:
    compiler = SlowCompiler()
    GrammarCompiler.compile(compiler, Guide("regex", "[de]"))  # loads llguidance, which takes long
    yield compiler
    compiler.may_end.set()


class Trials:
    """Lets every guide pass but "bad"; counts those that are cancelled."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.num_cancelled = 0

    async def ask(self, question: dict[str, str], place: str) -> None:
        if question["text"] == "bad":
            raise InvalidRequestError(f"refused: {place}")
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise


@pytest.fixture
def trials() -> Trials:
    return Trials()


@pytest.fixture
def grammars(compiler: SlowCompiler, trials: Trials) -> Grammars:
    found = Grammars(None, letters(), VOCAB_SIZE)  # type: ignore[arg-type]
    found._compiler, found._trials = compiler, trials  # type: ignore[assignment]
    return found


def guide(text: str) -> Guide:
    return Guide("regex", text)


async def test_what_a_trial_refuses_is_never_compiled(grammars: Grammars, compiler: SlowCompiler) -> None:
    with pytest.raises(InvalidRequestError, match="refused"):
        await grammars.compile(guide("bad"))
    assert not compiler.num_begun


async def test_a_guide_is_compiled_once_for_all_that_ask(
    grammars: Grammars, compiler: SlowCompiler, trials: Trials
) -> None:
    trials.may_end.set()
    compiler.may_end.set()
    crowd = [asyncio.ensure_future(grammars.compile(guide("[ab]*"))) for _ in range(3)]
    found = {id(await each) for each in crowd}
    assert len(found) == 3, "each request has a grammar of its own"
    assert compiler.num_begun == {"[ab]*": 1}


async def test_a_trial_ends_when_the_last_that_waits_leaves(
    grammars: Grammars, compiler: SlowCompiler, trials: Trials
) -> None:
    crowd = [asyncio.ensure_future(grammars.compile(guide("[ab]*"))) for _ in range(2)]
    for each in crowd:
        await asyncio.sleep(0.01)
        assert not trials.num_cancelled
        each.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    await asyncio.sleep(0.01)
    assert trials.num_cancelled == 1 and not grammars._compiling
    trials.may_end.set()
    compiler.may_end.set()
    assert await grammars.compile(guide("[ab]*")) is not None


async def test_a_compiled_guide_does_not_wait_for_others(
    grammars: Grammars, compiler: SlowCompiler, trials: Trials
) -> None:
    trials.may_end.set()
    compiler.may_end.set()
    await grammars.compile(guide("[ab]*"))
    compiler.may_end.clear()
    crowd = [asyncio.ensure_future(grammars.compile(guide(text))) for text in ("c", "d", "e")]
    await asyncio.sleep(0)
    assert await grammars.compile(guide("[ab]*")) is not None
    compiler.may_end.set()
    await asyncio.gather(*crowd)
