"""Renders conversations in a few processes, so that one that takes long does not hold up all others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from pipelines.errors import ServerBusyError
from pipelines.text.chat_template import ChatRenderer, ChatTemplate
from pipelines.time_limit import within

_NUM_PROCESSES = 2  # a conversation takes milliseconds, a hostile one a second
_MAX_OPEN = 64
_WITHIN_S = 10.0


class ChatRenderers:
    """A queue of conversations for the chat template of a model. ``render`` is used on one event loop.

    Attributes:
        template: The templates of the model.

    Args:
        template: See above.
        max_open: Most conversations that are rendered or wait.
        within_s: Longest time until one is rendered.
    """

    def __init__(
        self, template: ChatTemplate, max_open: int = _MAX_OPEN, within_s: float = _WITHIN_S
    ) -> None:
        self.template = template
        self._max_open = max_open
        self._within_s = within_s
        self._num_open = 0
        self._idle = asyncio.Semaphore(_NUM_PROCESSES)
        self._of_thread = threading.local()
        self._renderers: list[ChatRenderer] = []
        self._threads = ThreadPoolExecutor(_NUM_PROCESSES, "chat", self._add_renderer)

    async def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Return the prompt of a conversation; see ``ChatRenderer.render``.

        Raises:
            ChatTemplateError: The template refuses the conversation, fails, or exceeds its limits.
            ServerBusyError: Too many conversations wait, or this one waited too long.
        """
        if self._num_open >= self._max_open:
            raise self._busy(f"{self._num_open} conversations")
        self._num_open += 1
        try:
            work = partial(self._render, messages, options)
            return await within(self._within_s, self._in_turn(work))
        except asyncio.TimeoutError:
            raise self._busy(f"waited {self._within_s:g} s") from None
        finally:
            self._num_open -= 1

    def close(self) -> None:
        """End the processes."""
        self._threads.shutdown(cancel_futures=True)
        for renderer in self._renderers:
            renderer.close()

    def _add_renderer(self) -> None:
        """Give a new thread a process of its own."""
        self._of_thread.renderer = ChatRenderer(self.template)
        self._renderers.append(self._of_thread.renderer)

    def _render(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
        renderer: ChatRenderer = self._of_thread.renderer
        return renderer.render(messages, **options)

    async def _in_turn(self, work: Callable[[], str]) -> str:
        """Render when a process is idle: in the queue of the thread pool, it would outlive its client."""
        await self._idle.acquire()
        rendering = asyncio.get_running_loop().run_in_executor(self._threads, work)
        rendering.add_done_callback(lambda _: self._idle.release())
        return await asyncio.shield(rendering)  # goes on if the client leaves

    def _busy(self, values: str) -> ServerBusyError:
        return ServerBusyError(
            "too many conversations are being rendered",
            values=values,
            limit=f"{self._max_open} at a time, each within {self._within_s:g} s",
            remedy="send the request again later",
        )
