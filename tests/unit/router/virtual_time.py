"""An event loop with virtual time: its clock jumps to the next timer, so waiting takes no time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

FOR_EVER_S = 10_000.0

_Result = TypeVar("_Result")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Advances time only while every task waits; if none would ever continue, the test fails."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        really_select = self._selector.select  # type: ignore[attr-defined]

        def select(timeout_s: float | None) -> Any:
            ready = really_select(0)
            if not ready and (timeout_s is None or self._now_s > FOR_EVER_S):
                raise AssertionError("everybody waits, and nobody would ever go on")
            if not ready:
                self._now_s += timeout_s or 0.0
            return ready

        self._selector.select = select  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now_s


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run like ``asyncio.run``, but instantly; fail if a task or timer is left over."""
    loop = VirtualTimeLoop()
    problems: list[str] = []
    loop.set_exception_handler(lambda _, context: problems.append(str(context)))
    try:
        result = loop.run_until_complete(loop.create_task(work))
        assert asyncio.all_tasks(loop) == set(), "a task is left over"
        assert [timer for timer in loop._scheduled if not timer.cancelled()] == []  # type: ignore[attr-defined]
        assert problems == []
        return result
    finally:
        while left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left))
        loop.close()
