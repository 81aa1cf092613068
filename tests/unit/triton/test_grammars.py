"""Tests of compiling guides for requests: some at a time, each within a time limit, each guide once."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipelines.errors import InvalidRequestError, ServerBusyError
from pipelines.speculation.request import GenerationRequest
from pipelines.text.guides import GrammarCompiler, Guide
from pipelines.triton.engine import grammars as grammars_module
from pipelines.triton.engine.grammars import Grammars
from pipelines.wire.engine_request import GenerationCall
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


@pytest.fixture
def grammars(compiler: SlowCompiler, monkeypatch: pytest.MonkeyPatch) -> Grammars:
    monkeypatch.setattr(grammars_module, "_LIMIT_S", 60.0)
    found = Grammars(None, letters(), VOCAB_SIZE)  # type: ignore[arg-type]
    found._compiler = compiler
    return found


def call(text: str) -> GenerationCall:
    request = GenerationRequest("test", np.array([1], np.int32), 4)
    return GenerationCall(request, False, None, False, "", guide=Guide("regex", text))


async def error_of(grammars: Grammars, text: str) -> BaseException | None:
    (found,) = await asyncio.gather(grammars.compile(call(text)), return_exceptions=True)
    return found if isinstance(found, BaseException) else None


async def begin(grammars: Grammars, compiler: SlowCompiler, *texts: str) -> list[asyncio.Future[Any]]:
    """Ask for guides, and return when a thread compiles each."""
    asked = [asyncio.ensure_future(grammars.compile(call(text))) for text in texts]
    while not all(compiler.num_begun[text] for text in texts):
        await asyncio.sleep(0.01)
    return asked


async def test_a_guide_that_takes_too_long_is_the_clients_fault_and_one_that_waits_is_not(
    grammars: Grammars, compiler: SlowCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = await begin(grammars, compiler, "a", "b")
    monkeypatch.setattr(grammars_module, "_LIMIT_S", 0.2)
    *slow, waiting = [await error_of(grammars, text) for text in ("a", "b", "c")]
    compiler.may_end.set()
    await asyncio.gather(*begun)
    assert all(isinstance(each, InvalidRequestError) and "too long" in each.what for each in slow)
    assert isinstance(waiting, ServerBusyError) and "waited 0.2 s" in waiting.values


async def test_few_guides_wait_and_others_are_told_at_once(
    grammars: Grammars, compiler: SlowCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars_module, "_MAX_COMPILING", 3)
    crowd = [asyncio.ensure_future(error_of(grammars, text)) for text in "abc"]
    await asyncio.sleep(0)
    refused = await error_of(grammars, "d")
    compiler.may_end.set()
    await asyncio.gather(*crowd)
    assert isinstance(refused, ServerBusyError) and "3 guides wait" in refused.values


async def test_a_guide_is_compiled_once_for_all_that_ask_and_goes_on_for_later_ones(
    grammars: Grammars, compiler: SlowCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = await begin(grammars, compiler, "[ab]*")
    with monkeypatch.context() as patch:
        patch.setattr(grammars_module, "_LIMIT_S", 0.2)
        assert isinstance(await error_of(grammars, "[ab]*"), InvalidRequestError)
    crowd = [asyncio.ensure_future(grammars.compile(call("[ab]*"))) for _ in range(3)]
    await asyncio.sleep(0)
    compiler.may_end.set()
    found = {id((await each).request.grammar) for each in crowd}
    assert len(found) == 3, "each request has a grammar of its own"
    await asyncio.gather(*begun)
    assert compiler.num_begun == {"[ab]*": 1}


async def test_a_compiled_guide_does_not_wait_for_others(grammars: Grammars, compiler: SlowCompiler) -> None:
    compiler.may_end.set()
    await grammars.compile(call("[ab]*"))
    compiler.may_end.clear()
    crowd = [asyncio.ensure_future(error_of(grammars, text)) for text in ("c", "d", "e")]
    await asyncio.sleep(0)
    assert (await grammars.compile(call("[ab]*"))).request.grammar is not None
    compiler.may_end.set()
    await asyncio.gather(*crowd)


def test_a_request_without_guide_is_left_alone(grammars: Grammars) -> None:
    plain = replace(call(""), guide=None)
    assert asyncio.run(grammars.compile(plain)) is plain
