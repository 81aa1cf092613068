"""Renders conversations in a process of its own, so that one that takes long does not hold up all others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from pipelines.errors import ServerBusyError
from pipelines.text.chat_template import ChatRenderer, ChatTemplate
from pipelines.time_limit import within

_MAX_OPEN = 64
_WITHIN_S = 10.0  # a conversation takes milliseconds, a hostile one a second


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
        self._is_idle = asyncio.Semaphore(1)
        self._renderer = ChatRenderer(template)
        self._thread = ThreadPoolExecutor(1, "chat")

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
            return await within(
                self._within_s, self._in_turn(partial(self._renderer.render, messages, **options))
            )
        except asyncio.TimeoutError:
            raise self._busy(f"waited {self._within_s:g} s") from None
        finally:
            self._num_open -= 1

    def close(self) -> None:
        """End the process."""
        self._thread.shutdown(cancel_futures=True)
        self._renderer.close()

    async def _in_turn(self, work: partial[str]) -> str:
        """Render when the process is idle: in the queue of the thread, it would outlive its client."""
        await self._is_idle.acquire()
        rendering = asyncio.get_running_loop().run_in_executor(self._thread, work)
        rendering.add_done_callback(lambda _: self._is_idle.release())
        return await asyncio.shield(rendering)  # goes on if the client leaves

    def _busy(self, values: str) -> ServerBusyError:
        return ServerBusyError(
            "too many conversations are being rendered",
            values=values,
            limit=f"{self._max_open} at a time, each within {self._within_s:g} s",
            remedy="send the request again later",
        )
