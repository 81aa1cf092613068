"""Tests of open requests: their limit, and how they end when their model does."""

from __future__ import annotations

import asyncio

import pytest

from pipelines.errors import EngineFailedError, ServerBusyError
from pipelines.triton.gateway.open_calls import OpenCalls

GONE = EngineFailedError("the model's process ended")


async def opened(calls: OpenCalls, *models: str) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(calls.run(model, asyncio.sleep(60))) for model in models]
    await asyncio.sleep(0)
    return tasks


async def left(task: asyncio.Task[None]) -> None:
    """Leave, as a client does."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_more_than_the_limit_are_refused_until_one_ends() -> None:
    async def scenario() -> None:
        calls = OpenCalls(max_open=2)
        first, second = await opened(calls, "a", "b")
        with pytest.raises(ServerBusyError, match="2 requests"):
            await calls.run("a", asyncio.sleep(60))
        await left(first)
        assert (calls.num_open, calls.num_refused) == (1, 1)
        await calls.run("a", asyncio.sleep(0))
        await left(second)
        assert calls.num_open == 0

    asyncio.run(scenario())


def test_the_end_of_a_model_ends_its_requests_and_no_others() -> None:
    async def scenario() -> None:
        calls = OpenCalls()
        tasks = await opened(calls, "a", "a", "b")
        assert calls.end("a", GONE) == 2
        for task in tasks[:2]:
            with pytest.raises(EngineFailedError, match="process ended"):
                await task
        assert (calls.num_open, tasks[2].done()) == (1, False)
        assert calls.end("a", GONE) == calls.end("unknown", GONE) == 0
        calls.end_all(GONE)
        with pytest.raises(EngineFailedError, match="process ended"):
            await tasks[2]
        assert calls.num_open == 0

    asyncio.run(scenario())


def test_an_error_of_the_work_passes_through() -> None:
    async def scenario() -> None:
        async def fail() -> None:
            raise GONE

        calls = OpenCalls()
        with pytest.raises(EngineFailedError):
            await calls.run("a", fail())
        assert calls.num_open == 0

    asyncio.run(scenario())


def test_when_a_model_was_heard_is_known_by_model() -> None:
    calls = OpenCalls()
    assert calls.heard_at_s("a") == calls.latest_heard_at_s == 0
    calls.hear("a")
    assert calls.heard_at_s("a") == calls.latest_heard_at_s > 0 == calls.heard_at_s("b")
