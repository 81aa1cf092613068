"""Tests of OpenAI's error object: it names the field, and tells nothing of the server's inside."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    ForbiddenError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    ProcessEndedError,
    RateLimitError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerBusyError,
    ServerUnavailableError,
    TransportError,
    UnauthorizedError,
)
from pipelines.front_door import own_server
from pipelines.front_door.errors import error_document, error_response
from pipelines.front_door.own_server import OwnServer
from pipelines.router.router import Router
from pipelines.wire.request import CompletionRequest

INSIDE = "/a/path, model speculative, 127.0.0.1:8001, config.pbtxt"
BUG = "The server failed on this request, by a bug in Draftproof."


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        (InvalidRequestError, 400, None),
        (ModelNotFoundError, 404, "model_not_found"),
        (UnauthorizedError, 401, "invalid_api_key"),
        (ForbiddenError, 403, "not_allowed"),
        (RateLimitError, 429, "rate_limit_exceeded"),
        (ServerBusyError, 503, "overloaded"),
        (ServerUnavailableError, 503, "unavailable"),
        (ProcessEndedError, 503, "unavailable"),
        (RequestCancelledError, 503, "unavailable"),
        (RequestTimeoutError, 504, "timeout"),
        (EngineFailedError, 500, "engine_failed"),
        (TransportError, 500, "internal_error"),
    ],
)
def test_each_class_has_its_status_and_code(
    kind: type[DraftproofError], status: int, code: str | None
) -> None:
    response = error_response(kind(f"what: {INSIDE}", "draftproof serve"))
    assert isinstance(response.body, bytes)
    assert (response.status, json.loads(response.body)["error"]["code"]) == (status, code)
    assert ("Retry-After" in response.headers) == (status in (429, 503))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ServerUnavailableError(f"no server answers: {INSIDE}", "draftproof serve"), "No server answers."),
        (ServerUnavailableError(f"no server answers at {INSIDE}"), "The server cannot answer now."),
        (ProcessEndedError(f"the model's process ended: {INSIDE}"), "The model's process ended."),
        (EngineFailedError(f"the engine failed; {INSIDE}"), "The engine failed."),
        (TransportError(f"garbled: {INSIDE}"), BUG),
        (InternalError(f"a bug: {INSIDE}"), BUG),
        (DraftproofError(f"anything: {INSIDE}"), BUG),
    ],
)
def test_errors_of_the_server_do_not_tell_what_is_inside(
    error: DraftproofError, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    document = json.dumps(error_document(error))
    assert not any(inside in document for inside in (*INSIDE.split(", "), "draftproof serve"))
    assert error_document(error)["error"]["message"].startswith(f"{told} ")
    is_told_to_the_operator = error_response(error).status == 503 or "/a/path" in caplog.text
    assert is_told_to_the_operator


@pytest.mark.parametrize(
    ("what", "remedy", "message", "param"),
    [
        ("the text is bad: text=1", "send one", "The text is bad: text=1. Send one.", "text"),
        ("n=0 is below 1", "add 1", "n=0 is below 1. Add 1.", "n"),
        ("top_p=2 is not 0 to 1", "try 1?", "top_p=2 is not 0 to 1. Try 1?", "top_p"),
        ("messages[0].role=1 is odd", "", "messages[0].role=1 is odd.", "messages"),
        ("it is long: prompt has 7 tokens", "", "It is long: prompt has 7 tokens.", "prompt"),
        ("a is missing; the keys are b", "", "a is missing; the keys are b.", "a"),
        ("it failed", "POST it again; \u00fc", "It failed. POST it again; \u00fc.", None),
        ("", "", "", None),
    ],
)
def test_a_message_is_sentences_and_names_the_field(
    what: str, remedy: str, message: str, param: str | None
) -> None:
    found = error_document(InvalidRequestError(what, remedy))["error"]
    assert (found["message"], found["param"]) == (message, param)
    assert (found["what"], found["remedy"]) == (what, remedy)


def test_long_parts_of_an_error_are_cut() -> None:
    long = "x" * 1_000_000
    assert len(json.dumps(error_document(InvalidRequestError(long, long)))) < 5000


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
    router = SimpleNamespace(answer=answer, routing=SimpleNamespace(metrics=None))
    monkeypatch.setattr(Router, "of", lambda *_, **__: router)
    model: Any = SimpleNamespace(max_requests=1, tokenizer=None, max_seq_len=8)
    server = OwnServer(model, {}, FrontDoorSettings(**settings).timeout_s)
    for streaming in (True, False):
        chunks = server.stream(CompletionRequest("x"), streaming=streaming)
        assert [chunk async for chunk in chunks] == []  # the stand-in says nothing
    assert asked == [timeout_us] * 2
