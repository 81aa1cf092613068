"""Tests of the log of requests: one line each, and texts only where the operator asks for them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.errors import InvalidRequestError, ServerStartError
from pipelines.front_door.guarding import openai_application
from pipelines.front_door.observing.exchange import EXCHANGE, RequestLog
from pipelines.wire.chunk import Chunk, SpeculationCounts
from pipelines.wire.request import CompletionRequest


class Model:
    name = "demo"

    def bytes_of(self, token_id: int) -> bytes:
        return bytes([token_id])


CHUNKS = (
    Chunk("ab", (97, 98), (False, True), "", 1.0, 2, SpeculationCounts(1, 4, 1, (1,))),
    Chunk("c", (99,), (False,), "length", 2.0, 3, SpeculationCounts(2, 6, 1, (1,)), arm="stable"),
)


def lines(
    path: Path, handle: Any, *requests: dict[str, str], log_texts: bool = False
) -> list[dict[str, Any]]:
    """Answer requests to ``/x`` with a handler and return what was logged."""
    model: Any = Model()
    settings = FrontDoorSettings(request_log=str(path), log_texts=log_texts)
    log = RequestLog(settings, model)
    application = openai_application(settings, log.observe, open_paths=())
    application.router.add_post("/x", handle)

    async def ask() -> None:
        async with TestClient(TestServer(application)) as client:
            for headers in requests:
                reply = await client.post("/x", headers=headers)
                assert reply.headers["X-Request-Id"]

    asyncio.run(ask())
    log.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


async def answer(request: web.Request) -> web.Response:
    exchange = request[EXCHANGE]
    exchange.key_name = "alice"
    exchange.ask([CompletionRequest(prompt_ids=(120, 121), seed=7)], streaming=True)
    for chunk in CHUNKS:
        exchange.add(0, chunk)
    return web.Response()


async def refuse(request: web.Request) -> web.Response:
    raise InvalidRequestError("a", "b")


def test_a_line_has_counts_and_no_text_unless_it_is_asked_for(tmp_path: Path) -> None:
    [line] = lines(tmp_path / "log", answer, {"X-Request-Id": "mine-1"})
    assert (line["request_id"], line["key"], line["path"], line["status"]) == ("mine-1", "alice", "/x", 200)
    assert line["answers"] == [
        {
            **{"finish_reason": "length", "prompt_tokens": 2, "output_tokens": 3, "draft_tokens": 6},
            **{"accepted_draft_tokens": 1, "seed": 7, "arm": "stable"},
        }
    ]
    assert "abc" not in json.dumps(line) and "xy" not in json.dumps(line)
    [line] = lines(tmp_path / "texts", answer, {}, log_texts=True)
    assert (line["answers"][0]["prompt"], line["answers"][0]["text"]) == ("xy", "abc")


def test_a_refusal_has_its_error_and_a_client_that_left_no_status(tmp_path: Path) -> None:
    first, second = lines(tmp_path / "log", refuse, {"X-Request-Id": "a b"}, {})
    assert (first["status"], first["error"], first["answers"]) == (400, "invalid_request", [])
    assert len({first["request_id"], second["request_id"], "a b"}) == 3

    async def leave(request: web.Request) -> web.Response:
        raise ConnectionResetError

    assert lines(tmp_path / "left", leave, {})[0]["status"] == 0


def test_an_observer_that_fails_changes_no_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(RequestLog, "_answer", fail)
    assert lines(tmp_path / "log", answer, {"X-Request-Id": "mine"}) == []
    assert "request mine was not recorded" in caplog.text


def test_a_log_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match="log of requests"):
        lines(tmp_path / "absent" / "log", answer)
