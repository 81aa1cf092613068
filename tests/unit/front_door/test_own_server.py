"""Tests of the front door's own server: how long an answer may take."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.front_door import own_server
from pipelines.front_door.own_server import OwnServer
from pipelines.router.router import Router
from pipelines.wire.request import CompletionRequest


@pytest.mark.parametrize(("settings", "timeout_us"), [({}, 0), ({"timeout_s": 900.5}, 900_500_000)])
async def test_an_answer_takes_as_long_as_its_tokens_unless_there_is_a_limit(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], timeout_us: int
) -> None:
    asked: list[int] = []

    async def answer(request: CompletionRequest, *, streaming: bool, timeout_us: int) -> AsyncIterator[Any]:
        asked.append(timeout_us)
        return
        yield

    monkeypatch.setattr(own_server, "Preprocessing", lambda *_: None)
    monkeypatch.setattr(Router, "of", lambda *_, **__: SimpleNamespace(answer=answer))
    model: Any = SimpleNamespace(max_requests=1, tokenizer=None, max_seq_len=8)
    server = OwnServer(model, {}, FrontDoorSettings(**settings).timeout_s)
    for streaming in (True, False):
        chunks = server.stream(CompletionRequest("x"), streaming=streaming)
        assert [chunk async for chunk in chunks] == []  # the stand-in says nothing
    assert asked == [timeout_us] * 2
