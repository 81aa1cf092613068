"""An event loop with virtual time: its clock jumps to the next event, so hours pass instantly."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time.

    Attributes:
        now_s: The time that ``time`` returns.
    """

    now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now_s = max(self.now_s, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def run_virtually(work: Coroutine[Any, Any, Any]) -> float:
    """Run a coroutine on a loop of its own; return the seconds that it took on that loop's clock."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(work)
        return loop.now_s
    finally:
        loop.close()
