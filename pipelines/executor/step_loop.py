"""The thread on which requests are answered and engines stepped.

One event loop runs everything: the coroutines that answer requests, and a pump that steps one executor
at a time whenever it has work. Between two steps every coroutine that got tokens runs until it waits
again, so the requests that a step answered together also ask for their next step together. Executors
earlier in the list go first: with the draft before the target, all requests finish drafting before one
target step verifies them all.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from pipelines.executor.executor import Executor

_LOG = logging.getLogger(__name__)

_Result = TypeVar("_Result")

STOP_TIMEOUT_S = 10.0  # a step of the largest supported engine takes well under a second


class StepLoop:
    """Owns the thread.

    Attributes:
        busy_time_s: Time in which an executor had work. Less the executors' ``engine_time_s``, it is what
            the batcher and the coroutines cost.

    Args:
        executors: In order of priority; may be empty, to run coroutines only.
    """

    def __init__(self, executors: Sequence[Executor]) -> None:
        self._executors = tuple(executors)
        self._loop = asyncio.new_event_loop()
        self._work = asyncio.Event()
        self.busy_time_s = 0.0
        self._thread = threading.Thread(target=self._run, name="step-loop", daemon=True)
        for executor in self._executors:
            executor.on_work = self._work.set

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def spawn(self, coroutine: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Run a coroutine on the thread; may be called from any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        """Cancel what still runs, then end the thread."""
        self._loop.call_soon_threadsafe(self._cancel_all)
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        pump = self._loop.create_task(self._pump())
        try:
            self._loop.run_until_complete(pump)
        except asyncio.CancelledError:
            self._loop.run_until_complete(self._let_tasks_end())
        except Exception:
            _LOG.exception("the step loop died")
            self._cancel_all()  # nobody steps any more for those who wait
            self._loop.run_until_complete(self._let_tasks_end())
        finally:
            self._loop.close()

    async def _pump(self) -> None:
        previous: Executor | None = None
        while True:
            executor = next((executor for executor in self._executors if executor.has_work), None)
            if executor is None:
                self._work.clear()
                await self._work.wait()
                continue
            # The last in order makes one step where the others make several: it is never the first.
            is_first = executor is not previous and executor is not self._executors[-1]
            try:
                await self._step(executor, is_first=is_first)
            except Exception:  # a defect of ours: its requests fail, those that come go on
                _LOG.exception("a step of %d requests ended in a defect", executor.num_running)
                executor.fail_all()
            previous = executor

    async def _step(self, executor: Executor, *, is_first: bool) -> None:
        started_s = time.perf_counter()
        if executor.step():
            # Every coroutine that the step answered runs now, and asks for its next step.
            await asyncio.sleep(0)
        seconds = time.perf_counter() - started_s
        self.busy_time_s += seconds
        executor.learn_cost(seconds, is_first=is_first)

    async def _let_tasks_end(self) -> None:
        others = asyncio.all_tasks(self._loop) - {asyncio.current_task(self._loop)}
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    def _cancel_all(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
