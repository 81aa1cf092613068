"""A thread that runs an event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

_LOG = logging.getLogger(__name__)

_Result = TypeVar("_Result")

STOP_TIMEOUT_S = 10.0  # a step of the largest supported engine takes well under a second


class AsyncioThread:
    """Runs coroutines on an event loop in a thread of its own.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_blocked(self) -> bool:
        """Whether a computation keeps the event loop from running coroutines at this moment."""
        return False

    def spawn(self, coroutine: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Run a coroutine on the thread; may be called from any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        """Cancel all coroutines and end the thread."""
        self._loop.call_soon_threadsafe(self._cancel_all)
        self._thread.join(STOP_TIMEOUT_S)

    async def _main(self) -> None:
        """Run until cancelled."""
        await asyncio.get_running_loop().create_future()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        main = self._loop.create_task(self._main())
        try:
            self._loop.run_until_complete(main)
        except asyncio.CancelledError:
            self._loop.run_until_complete(self._let_tasks_end())
        except BaseException:  # such as a panic of a library in Rust
            _LOG.exception("the thread %s died", self._thread.name)
            self._cancel_all()  # coroutines that wait for this thread would wait forever
            self._loop.run_until_complete(self._let_tasks_end())
        finally:
            self._loop.close()

    async def _let_tasks_end(self) -> None:
        others = asyncio.all_tasks(self._loop) - {asyncio.current_task(self._loop)}
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    def _cancel_all(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
