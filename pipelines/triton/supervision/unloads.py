"""Notices a model that Triton cannot unload because the model's process was killed.

If the process held a lock of the shared memory between it and Triton, Triton waits for that lock for ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from pipelines.errors import ServerUnavailableError
from pipelines.triton.gateway.triton import Triton
from pipelines.triton.supervision.model_processes import ModelProcess

_LOG = logging.getLogger(__name__)

LETS_GO_WITHIN_S = 30.0
"""How long Triton may hold a model after its process has ended; usually 2 s."""

LOOK_INTERVAL_S = 1.0
_HELD = frozenset({"READY", "UNLOADING"})


class Unloads:
    """The unloads of one server that Triton was asked for.

    Args:
        triton: Connections to Triton.
    """

    def __init__(self, triton: Triton) -> None:
        self._triton = triton
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def watch(self, process: ModelProcess, kill_triton: Callable[[], None]) -> None:
        """Kill Triton if it still holds a model long after the model's process has ended.

        Args:
            process: The process that is to end.
            kill_triton: Kills the Triton that was asked to unload the model.
        """
        self.forget(process.model)
        self._tasks[process.model] = asyncio.create_task(self._watch(process, kill_triton))

    def forget(self, model: str) -> None:
        """Watch a model no longer, because it is loaded again."""
        if task := self._tasks.pop(model, None):
            task.cancel()

    def forget_all(self) -> None:
        """Watch no model, because Triton has ended."""
        for model in tuple(self._tasks):
            self.forget(model)

    async def _watch(self, process: ModelProcess, kill_triton: Callable[[], None]) -> None:
        while process.is_alive:
            await asyncio.sleep(LOOK_INTERVAL_S)
        ended_at_s = time.monotonic()
        while await self._is_held(process.model):
            if time.monotonic() - ended_at_s > LETS_GO_WITHIN_S:
                _LOG.error("Triton cannot unload model %s, whose process has ended", process.model)
                kill_triton()
                return
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _is_held(self, model: str) -> bool:
        try:
            return any(
                each["name"] == model and each.get("state") in _HELD for each in await self._triton.index()
            )
        except ServerUnavailableError:
            return True
