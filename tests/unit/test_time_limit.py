"""Tests that work is awaited for a limited time, and that no cancellation is lost meanwhile."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from pipelines.time_limit import within
from tests.support.lost_cancellations import turns_that_lose_a_cancellation


def test_a_cancellation_that_arrives_with_the_result_is_not_lost() -> None:
    assert turns_that_lose_a_cancellation(lambda awaited: within(60, awaited), 1) == []
    assert turns_that_lose_a_cancellation(lambda awaited: within(None, awaited), 1) == []


def test_results_and_errors_are_those_of_the_work() -> None:
    async def fail() -> None:
        raise LookupError

    assert asyncio.run(within(60, asyncio.sleep(0, "done"))) == "done"
    assert asyncio.run(within(None, asyncio.sleep(0, "done"))) == "done"
    with pytest.raises(LookupError):
        asyncio.run(within(60, fail()))


@pytest.mark.parametrize("timeout_s", [0.0, 0.01])
def test_work_that_takes_too_long_has_ended_when_the_error_arrives(timeout_s: float) -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(within(timeout_s, work()))
    assert ended == [True]


async def test_work_of_a_cancelled_caller_has_ended_too() -> None:
    awaited = asyncio.get_running_loop().create_future()
    caller = asyncio.create_task(within(60, awaited))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert awaited.cancelled()


@pytest.mark.parametrize("fails_first", [True, False])
def test_an_error_that_a_cancelled_caller_does_not_raise_is_not_logged(fails_first: bool) -> None:
    """A client that leaves while its body is read is cancelled, and the connection is lost."""
    logged: list[dict[str, Any]] = []

    async def read() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise ConnectionResetError

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context))
        awaited = asyncio.get_running_loop().create_future() if fails_first else read()
        caller = asyncio.create_task(within(60, awaited))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if isinstance(awaited, asyncio.Future):
            awaited.set_exception(ConnectionResetError())
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        del awaited, caller
        gc.collect()

    asyncio.run(scenario())
    gc.collect()
    assert logged == []
