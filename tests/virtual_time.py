"""An event loop whose clock jumps to what happens next: hours are over at once, and never vary."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """Attributes: now_s: what ``time`` says."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now_s = max(self.now_s, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def run_virtually(work: Coroutine[Any, Any, Any]) -> float:
    """Run it on a loop of its own; returns the seconds that it took on that loop's clock."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(work)
        return loop.now_s
    finally:
        loop.close()
