"""Finds cancellations that a coroutine drops because what it awaits is done at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

_NUM_TURNS = 12
"""More turns of the event loop than lie between the end of what is awaited and the coroutine's next line."""


def turns_that_lose_a_cancellation(
    begin: Callable[[asyncio.Future[Any]], Awaitable[Any]], result: Any
) -> list[int]:
    """Cancel a coroutine in each turn of the event loop after what it awaits is done.

    Args:
        begin: Returns the coroutine; it gets the future to await.

    Returns:
        The turns after which the coroutine went on as if it were not cancelled; empty if there are none.
    """

    async def goes_on(num_turns: int) -> bool:
        awaited = asyncio.get_running_loop().create_future()

        async def work() -> None:
            await begin(awaited)
            await asyncio.get_running_loop().create_future()  # for ever, unless it is cancelled

        task = asyncio.create_task(work())
        await _turn(_NUM_TURNS)
        assert not task.done(), f"it did not await: {task.exception()!r}"
        awaited.set_result(result)
        await _turn(num_turns)
        task.cancel()
        await _turn(_NUM_TURNS)
        if has_gone_on := not task.done():
            task.cancel()
        await asyncio.wait({task})
        return has_gone_on

    return [number for number in range(_NUM_TURNS) if asyncio.run(goes_on(number))]


async def _turn(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)
