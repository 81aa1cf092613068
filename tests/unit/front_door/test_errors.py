"""Tests of OpenAI's error object: texts of clients are cut, and nothing of the server's inside is told."""

from __future__ import annotations

import json

import pytest

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
from pipelines.front_door.errors import error_document, error_response

INSIDE = {
    "values": "/a/path, model speculative, 127.0.0.1:8001",
    "limit": "config.pbtxt",
    "remedy": "draftproof serve",
}


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
    response = error_response(kind("what", **INSIDE))
    assert isinstance(response.body, bytes)
    assert (response.status, json.loads(response.body)["error"]["code"]) == (status, code)
    assert ("Retry-After" in response.headers) == (status in (429, 503))


@pytest.mark.parametrize(
    "error",
    [
        ServerUnavailableError("no server answers", **INSIDE),
        ProcessEndedError("the model's process ended during the request", **INSIDE),
        EngineFailedError("the engine failed", **INSIDE),
        TransportError("garbled", **INSIDE),
        InternalError("a bug", **INSIDE),
        DraftproofError("anything: /a/path", **INSIDE),
    ],
)
def test_errors_of_the_server_do_not_tell_what_is_inside(
    error: DraftproofError, caplog: pytest.LogCaptureFixture
) -> None:
    told = json.dumps(error_document(error))
    assert not any(
        inside in told for inside in ("/a/path", "speculative", "8001", "pbtxt", "draftproof serve")
    )
    is_told_to_the_operator = error_response(error).status == 503 or "/a/path" in caplog.text
    assert is_told_to_the_operator


def test_an_error_has_its_four_parts_of_which_long_ones_are_cut() -> None:
    parts = {"what": "a", "values": "n=9", "limit": "n=4", "remedy": "b"}
    document = error_document(InvalidRequestError(**parts))["error"]
    assert {name: document[name] for name in parts} == parts
    long = "x" * 1_000_000
    document = error_document(InvalidRequestError("what", values=long, limit=long, remedy=long))["error"]
    assert len(json.dumps(document)) < 5000


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            ("the text is bad", "text=1", "a text", "send one"),
            "The text is bad: text=1. Allowed: a text. Send one.",
        ),
        (
            ("n is out of range", "n=0", "at least 1", "add 1"),
            "n is out of range: n=0. Allowed: at least 1. Add 1.",
        ),
        (("top_p is odd", "2", "0 to 1", "try 1?"), "top_p is odd: 2. Allowed: 0 to 1. Try 1?"),
        (("a.yaml: no key", "k", "", "did you mean k.l?"), "a.yaml: no key: k. Did you mean k.l?"),
        (("a key is missing", "a", "x" * 301, ""), f"A key is missing: a. Allowed: {'x' * 300}..."),
        (("it failed", "", "", "POST it again; \u00fc"), "It failed. POST it again; \u00fc."),
        (("", "", "", ""), ""),
    ],
)
def test_a_message_is_sentences(parts: tuple[str, str, str, str], message: str) -> None:
    what, values, limit, remedy = parts
    error = InvalidRequestError(what, values=values, limit=limit, remedy=remedy)
    assert error_document(error)["error"]["message"] == message


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ("max_tokens=3", "max_tokens"),
        ("max_tokens", "max_tokens"),
        ("messages[0].content has 5 bytes", "messages"),
        ("prompt has 7 tokens", "prompt"),
    ],
)
def test_a_field_is_named(values: str, field: str) -> None:
    assert error_document(InvalidRequestError("what", values=values))["error"]["param"] == field
