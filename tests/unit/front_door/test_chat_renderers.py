"""Tests of the queue in front of chat templates: one conversation holds up neither others nor the server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pipelines.errors import ChatTemplateError, ServerBusyError
from pipelines.front_door import served_model
from pipelines.front_door.served_model import ChatRenderers
from pipelines.text.chat_template import ChatTemplate

SOURCE = "{% for message in messages %}{{ message.content }}{% endfor %}"
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def render(renderers: ChatRenderers, text: str = "a") -> asyncio.Task[str]:
    return asyncio.create_task(renderers.render([{"role": "user", "content": text}]))


@contextmanager
def renderers_for(**limits: Any) -> Iterator[ChatRenderers]:
    source = "{% if messages[0].content == 'slow' %}" + ENDLESS + "{% endif %}" + SOURCE
    renderers = ChatRenderers(ChatTemplate({"default": source}, {}, ()), **limits)
    try:
        yield renderers
    finally:
        renderers.close()


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Replace the renderer by one that answers when the event is set."""
    event = threading.Event()

    class StuckRenderer:
        def __init__(self, template: ChatTemplate) -> None: ...

        def render(self, messages: Any) -> str:
            assert event.wait(120)
            return "late"

        def close(self) -> None: ...

    monkeypatch.setattr(served_model, "ChatRenderer", StuckRenderer)
    return event


async def test_a_hostile_conversation_holds_others_up_for_no_longer_than_its_limit() -> None:
    with renderers_for(within_s=60.0) as renderers:
        slow = render(renderers, "slow")
        await asyncio.sleep(0)
        assert [await render(renderers, text) for text in ("b", "c")] == ["b", "c"]
        with pytest.raises(ChatTemplateError):
            await slow


async def test_a_full_queue_refuses_at_once(go_on: threading.Event) -> None:
    with renderers_for(max_open=4) as renderers:
        waiting = [render(renderers) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(ServerBusyError, match="4 at a time"):
            await render(renderers)
        go_on.set()
        assert await asyncio.gather(*waiting) == ["late"] * 4
        assert await render(renderers) == "late"


async def test_a_conversation_that_waits_too_long_is_refused_and_leaves(go_on: threading.Event) -> None:
    with renderers_for(max_open=4, within_s=0.3) as renderers:
        for _ in range(3):
            found = await asyncio.gather(*(render(renderers) for _ in range(4)), return_exceptions=True)
            assert all(isinstance(each, ServerBusyError) for each in found)
        go_on.set()
        renderers._within_s = 60
        assert await render(renderers) == "late"


async def test_conversations_of_clients_that_leave_are_not_kept(go_on: threading.Event) -> None:
    with renderers_for(max_open=4) as renderers:
        leaving = [render(renderers) for _ in range(4)]
        await asyncio.sleep(0.05)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        assert renderers._thread._work_queue.qsize() == 0
        waiting = [render(renderers) for _ in range(4)]
        go_on.set()
        assert await asyncio.wait_for(asyncio.gather(*waiting), 60) == ["late"] * 4
