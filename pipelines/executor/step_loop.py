"""Steps the engines and answers requests on one thread.

One event loop runs everything: the coroutines that answer requests, and a pump that steps one executor at a
time while there is work. After a step, every coroutine that received tokens runs until it waits again, so
requests that were answered by the same step also ask for their next step together. Executors that come first
in the list have priority: with the draft before the target, all requests finish drafting before one step of
the target verifies them all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Sequence

from pipelines.asyncio_thread import AsyncioThread
from pipelines.executor.chunk_budget import SharedTime
from pipelines.executor.executor import Executor

_LOG = logging.getLogger(__name__)

_LEAST_PRIORITY = 19
# A network is compiled once no step was made for so long, or after the longer time in any case.
_IDLE_S, _MOST_BUSY_S = 5.0, 10.0


class StepLoop(AsyncioThread):
    """An asyncio thread that also steps executors.

    Args:
        executors: The executors in order of priority.
    """

    def __init__(self, executors: Sequence[Executor]) -> None:
        super().__init__("step-loop")
        self._executors = tuple(executors)
        self._work = asyncio.Event()
        self._is_stepping = False
        self._is_stopping = threading.Event()
        self._last_step_s = time.monotonic()
        self._compiling = threading.Thread(target=self._compile_small_networks, name="compiling", daemon=True)
        self._time = SharedTime()
        for executor in self._executors:
            executor.on_work = self._work.set
            executor.scheduler.chunk_budget.shared = self._time

    def start(self) -> None:
        """Start the thread, and another one that compiles networks for small steps."""
        super().start()
        self._compiling.start()

    def stop(self) -> None:
        """Cancel all coroutines and end both threads."""
        self._is_stopping.set()
        super().stop()
        self._compiling.join()  # a process that ends while OpenVINO compiles ends with a fault

    def _compile_small_networks(self) -> None:
        """Compile one network of each engine after another; two at once would spoil each other.

        OpenVINO compiles with threads of its own, which have the usual priority and would slow down the first
        requests of a new server.
        """
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LEAST_PRIORITY)
        try:
            while self._waits_until_idle() and any(
                [executor.engine.compile_small_network() for executor in self._executors]
            ):
                self._loop.call_soon_threadsafe(self._work.set)  # an idle loop adopts them at once
        except RuntimeError as error:  # of OpenVINO
            _LOG.warning("small steps stay slower than they could be: %s", error)

    def _waits_until_idle(self) -> bool:
        """Wait until a network may be compiled; return False if the thread has to end."""
        ends_s = time.monotonic() + _MOST_BUSY_S
        while time.monotonic() < min(ends_s, self._last_step_s + _IDLE_S):
            if self._is_stopping.wait(_IDLE_S / 20):
                break
        return not self._is_stopping.is_set()

    def _adopt_small_networks(self) -> None:
        try:
            for executor in self._executors:
                executor.engine.adopt_small_networks()
        except (RuntimeError, TimeoutError):
            _LOG.exception("a network for small steps could not be tried and stays unused")

    @property
    def is_blocked(self) -> bool:
        """Whether an engine computes a step at this moment; coroutines wait until it is done."""
        return self._is_stepping

    async def _main(self) -> None:
        previous: Executor | None = None
        while True:
            executor = self._next()
            if executor is None:
                self._work.clear()
                self._adopt_small_networks()
                await self._work.wait()
                continue
            # The last executor makes one step where the others make several: it never has a "first" step.
            is_first = executor is not previous and executor is not self._executors[-1]
            try:
                await self._step(executor, is_first=is_first)
            except asyncio.CancelledError:
                raise
            except BaseException:  # a bug, or a panic in Rust: these requests fail, later ones are served
                _LOG.exception(
                    "a step of %d requests raised an unexpected error", executor.scheduler.num_running
                )
                executor.fail_all()
            previous = executor

    def _next(self) -> Executor | None:
        """Return the first executor with work; one that only reads long prompts waits when it must."""
        busy = [executor for executor in self._executors if executor.has_work]
        self._time.num_reading = sum(executor.scheduler.num_reading for executor in busy)
        self._time.num_answering = sum(executor.scheduler.num_answering for executor in busy)
        ready = (executor for executor in busy if not (self._time.must_wait and _only_reads_long(executor)))
        return next(ready, busy[0] if busy else None)

    async def _step(self, executor: Executor, *, is_first: bool) -> None:
        self._adopt_small_networks()
        started_s = time.perf_counter()
        self._is_stepping = True
        try:
            is_answered = executor.step(may_continue=not is_first)  # the first step has a cost of its own
        finally:
            self._is_stepping = False
        if is_answered:
            await asyncio.sleep(0)  # let each coroutine that was answered run and ask for its next step
        seconds = time.perf_counter() - started_s
        executor.learn_time(seconds)
        self._last_step_s = time.monotonic()


def _only_reads_long(executor: Executor) -> bool:
    """Return whether all running requests are far from the end of their prompts."""
    return 0 < executor.scheduler.num_running == executor.scheduler.num_reading
