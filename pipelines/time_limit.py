"""Awaits work for a limited time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_Result = TypeVar("_Result")


async def within(timeout_s: float | None, work: Awaitable[_Result]) -> _Result:
    """Await work for a limited time; however this ends, the work has ended too.

    Unlike ``asyncio.wait_for`` before Python 3.12, it never drops a cancellation that arrives together with
    the result: the caller would go on, with nobody waiting for what it does.

    Args:
        timeout_s: Most seconds; None for any number.
        work: A coroutine or a future. It is cancelled if the time is over or the caller is cancelled.

    Raises:
        asyncio.TimeoutError: The time is over.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_see)
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
        if not done:
            raise asyncio.TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


def _see(task: asyncio.Future[_Result]) -> None:
    """Keep asyncio from logging an error that a cancelled caller does not raise any more."""
    if not task.cancelled():
        task.exception()
