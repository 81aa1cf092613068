"""Tests of open requests: their limit, and how they end when their model does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from pipelines.errors import DraftproofError, EngineFailedError, ServerBusyError
from pipelines.triton.gateway.open_calls import OpenCalls

GONE = EngineFailedError("the model's process ended")


async def started(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


def test_more_than_the_limit_are_refused_until_one_ends() -> None:
    calls = OpenCalls(max_open=2)
    gone: list[DraftproofError] = []
    end_first = calls.begin("a", gone.append)
    calls.begin("b", gone.append)
    with pytest.raises(ServerBusyError, match="2 requests"):
        calls.begin("a", gone.append)
    end_first()
    end_first()  # also if it was ended before
    assert calls.num_open == 1
    calls.begin("a", gone.append)
    with pytest.raises(ServerBusyError):
        calls.begin("a", gone.append)
    assert (calls.num_open, calls.num_refused) == (2, 2)


def test_the_end_of_a_model_ends_its_requests_and_no_others() -> None:
    calls = OpenCalls()
    told: list[str] = []
    ends = [calls.begin(model, lambda error, model=model: told.append(model)) for model in ("a", "a", "b")]  # type: ignore[misc]
    assert calls.end("a", GONE) == 2
    assert (told, calls.num_open) == (["a", "a"], 1)
    for end in ends[:2]:  # by those that were told
        end()
    assert calls.num_open == 1
    assert calls.end("a", GONE) == calls.end("unknown", GONE) == 0
    assert calls.end_all(GONE) == 1
    assert (told, calls.num_open) == (["a", "a", "b"], 0)


def test_work_ends_with_the_error_of_its_model() -> None:
    async def scenario() -> None:
        calls = OpenCalls()
        work = await started(calls.run("a", asyncio.sleep(60)))
        other = await started(calls.run("b", asyncio.sleep(60)))
        assert calls.num_open == 2
        calls.end("a", GONE)
        with pytest.raises(EngineFailedError, match="process ended"):
            await work
        assert not other.done() and calls.num_open == 1
        other.cancel()
        with pytest.raises(asyncio.CancelledError):
            await other
        assert calls.num_open == 0

    asyncio.run(scenario())


def test_a_client_that_leaves_cancels_its_work() -> None:
    async def scenario() -> None:
        calls, cancelled = OpenCalls(), asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        task = await started(calls.run("a", work()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cancelled.is_set() and calls.num_open == 0

    asyncio.run(scenario())


def test_results_and_errors_of_work_pass_through() -> None:
    async def scenario() -> None:
        calls = OpenCalls(max_open=1)
        assert await calls.run("a", asyncio.sleep(0, "done")) == "done"

        async def fail() -> None:
            raise GONE

        with pytest.raises(EngineFailedError):
            await calls.run("a", fail())
        assert calls.num_open == 0
        calls.begin("a", lambda error: None)
        with pytest.raises(ServerBusyError):
            await calls.run("a", asyncio.sleep(0))

    asyncio.run(scenario())


def test_when_a_model_was_heard_is_known_by_model() -> None:
    calls = OpenCalls()
    assert calls.heard_at_s("a") == 0
    calls.hear("a")
    assert calls.heard_at_s("a") > 0 == calls.heard_at_s("b")
