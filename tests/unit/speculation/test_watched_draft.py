"""Tests of a draft that fails, pauses and returns."""

from __future__ import annotations

import asyncio
import logging

import numpy as np
import pytest

from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    PromptTooLongError,
    RequestRefusedError,
    RequestTimeoutError,
)
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.loop import Round, speculate
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.token_ids import TokenIds
from pipelines.speculation.watched_draft import FIRST_PAUSE_S, LAST_PAUSE_S, WatchedDraft

REQUEST = GenerationRequest("r", np.array([1], np.int32), 6)


class Engine:
    """An engine that counts on from the last token, and fails while it has an error."""

    def __init__(self) -> None:
        self.error: DraftproofError | None = None
        self.num_calls = 0

    async def __call__(self, request: GenerationRequest) -> Output:
        self.num_calls += 1
        if self.error is not None:
            raise self.error
        first = int(request.input_ids[-1]) + 1
        token_ids: TokenIds = np.arange(first, first + request.max_tokens, dtype=np.int32)
        return Output(token_ids, "", is_final=True)


def failure() -> EngineFailedError:
    return EngineFailedError("an engine step failed: draft", "none")


class World:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.engine = Engine()
        self.draft = WatchedDraft(self.engine, lambda: self.now_s)

    def ask(self) -> bool:
        """Ask the draft; return whether it answered."""
        try:
            asyncio.run(self.draft(REQUEST))  # type: ignore[arg-type]
        except DraftproofError:
            return False
        return True

    def answer(self) -> list[Round]:
        async def rounds() -> list[Round]:
            return [part async for part in speculate(REQUEST, self.draft, Engine(), FixedDraftLength(2))]

        return asyncio.run(rounds())


def test_a_request_continues_without_a_failed_draft() -> None:
    world = World()
    healthy = world.answer()
    world.engine.error = failure()
    rounds = world.answer()
    assert [part.token_ids.tolist() for part in rounds] == [[2], [3], [4], [5], [6], [7]]
    assert [token for part in healthy for token in part.token_ids.tolist()] == [2, 3, 4, 5, 6, 7]
    assert {part.num_draft_tokens for part in rounds} == {0}
    assert world.draft.num_failures == 1
    assert not world.draft.is_available


def test_the_draft_is_tried_again_after_pauses_that_grow() -> None:
    world = World()
    world.engine.error = failure()
    pauses = []
    for _ in range(9):
        assert not world.ask()
        calls, waited_s = world.engine.num_calls, 0.0
        while world.engine.num_calls == calls:
            world.now_s += FIRST_PAUSE_S
            waited_s += FIRST_PAUSE_S
            world.ask()
        pauses.append(waited_s)
    assert pauses == [min(FIRST_PAUSE_S * 2**number, LAST_PAUSE_S) for number in range(9)]


def test_it_is_announced_once_that_the_draft_goes_and_once_that_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    caplog.set_level(logging.WARNING)
    world.engine.error = failure()
    for _ in range(5):
        world.ask()
        world.now_s += 10
    world.engine.error = None
    world.now_s += LAST_PAUSE_S
    assert world.ask() and world.ask()
    assert ["fails" in record.message for record in caplog.records] == [True, False]
    assert world.draft.is_available


def test_a_deadline_of_the_request_is_no_failure_of_the_draft() -> None:
    world = World()
    world.engine.error = RequestTimeoutError("late", "wait")
    assert not world.ask()
    assert world.draft.is_available and world.draft.num_failures == 0


@pytest.fixture(params=[RequestRefusedError, PromptTooLongError])
def refusal(request: pytest.FixtureRequest) -> DraftproofError:
    """Return an error of one request: of NVIDIA's engine, or of a draft with another tokenizer."""
    error: DraftproofError = request.param("the draft refuses: logits", "-")
    return error


def test_a_request_that_the_draft_refuses_stops_no_other(
    refusal: DraftproofError, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    caplog.set_level(logging.WARNING)
    world.engine.error = refusal
    assert not world.ask()
    world.engine.error = None
    assert world.ask(), "the next request is asked for at once"
    assert world.draft.is_available
    assert (world.draft.num_failures, world.draft.num_refusals) == (0, 1)
    assert ["refuses a request" in record.message for record in caplog.records] == [True]


def test_a_draft_that_refuses_a_request_is_not_asked_for_it_again(refusal: DraftproofError) -> None:
    world = World()
    world.engine.error = refusal
    rounds = world.answer()
    assert [token for part in rounds for token in part.token_ids.tolist()] == [2, 3, 4, 5, 6, 7]
    assert world.engine.num_calls == 1
