"""Tests of the queue in front of chat templates: one conversation holds up neither others nor the server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pipelines.errors import ChatTemplateError, ServerBusyError
from pipelines.front_door import served_model
from pipelines.front_door.served_model import ChatRenderers
from pipelines.text.chat_template import ChatTemplate

SOURCE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def chat(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def with_renderers(work: Callable[[ChatRenderers], Awaitable[None]], **limits: Any) -> None:
    renderers = ChatRenderers(ChatTemplate({"default": SOURCE}, {}, ()), **limits)
    try:
        asyncio.run(work(renderers))
    finally:
        renderers.close()


class StuckRenderer:
    """A renderer that answers when it is told to."""

    go_on = threading.Event()

    def __init__(self, template: ChatTemplate) -> None:
        pass

    def render(self, messages: Any) -> str:
        assert self.go_on.wait(120)
        return "late"

    def close(self) -> None:
        pass


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> type[StuckRenderer]:
    monkeypatch.setattr(served_model, "ChatRenderer", StuckRenderer)
    StuckRenderer.go_on.clear()
    return StuckRenderer


def test_a_hostile_conversation_holds_others_up_for_no_longer_than_its_limit() -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    source = "{% if messages[0].content == 'slow' %}" + endless + "{% endif %}" + SOURCE

    async def work() -> None:
        renderers = ChatRenderers(ChatTemplate({"default": source}, {}, ()), within_s=60.0)
        slow = asyncio.create_task(renderers.render(chat("slow")))
        await asyncio.sleep(0)
        texts = [await renderers.render(chat(f"hello {number}")) for number in range(3)]
        assert texts == [f"hello {number}" for number in range(3)]
        with pytest.raises(ChatTemplateError):
            await slow
        renderers.close()

    asyncio.run(work())


def test_a_full_queue_refuses_at_once(stuck: type[StuckRenderer]) -> None:
    async def work(renderers: ChatRenderers) -> None:
        waiting = [asyncio.create_task(renderers.render(chat("a"))) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(ServerBusyError, match="4 at a time"):
            await renderers.render(chat("a"))
        stuck.go_on.set()
        assert await asyncio.gather(*waiting) == ["late"] * 4
        assert await renderers.render(chat("a")) == "late"

    with_renderers(work, max_open=4)


def test_a_conversation_that_waits_too_long_is_refused_and_leaves_its_place(
    stuck: type[StuckRenderer],
) -> None:
    async def work(renderers: ChatRenderers) -> None:
        for _ in range(3):
            found = await asyncio.gather(
                *(renderers.render(chat("a")) for _ in range(4)), return_exceptions=True
            )
            assert all(isinstance(each, ServerBusyError) for each in found)
        stuck.go_on.set()
        renderers._within_s = 60
        assert await renderers.render(chat("a")) == "late"

    with_renderers(work, max_open=4, within_s=0.3)


def test_conversations_of_clients_that_leave_are_not_kept(stuck: type[StuckRenderer]) -> None:
    async def work(renderers: ChatRenderers) -> None:
        leaving = [asyncio.create_task(renderers.render(chat("a"))) for _ in range(4)]
        await asyncio.sleep(0.05)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        assert renderers._thread._work_queue.qsize() == 0
        waiting = [asyncio.create_task(renderers.render(chat("a"))) for _ in range(4)]
        stuck.go_on.set()
        assert await asyncio.wait_for(asyncio.gather(*waiting), 60) == ["late"] * 4

    with_renderers(work, max_open=4)
