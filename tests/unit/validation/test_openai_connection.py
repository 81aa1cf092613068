"""Tests of requests to OpenAI-compatible servers: each way to fail has a name, and keys stay secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InvalidRequestError,
    RateLimitError,
    RequestTimeoutError,
    ServerUnavailableError,
    TransportError,
    UnauthorizedError,
)
from pipelines.openai_stream import Event
from pipelines.validation.differences import LATE_OR_NO_ANSWER
from pipelines.validation.openai.server.connection import Connection
from pipelines.validation.openai.server.endpoint import CANDIDATE_KEY, Endpoint, read_key
from tests.support.scripted_http import scripted_http

KEY = "sk-test-0123456789"
BUSY = {"Retry-After": "0"}
ANSWER = b'{"choices": [], "model": "m"}'


def connect(url: str) -> Connection:
    return Connection(Endpoint(url, key=KEY), timeout_s=120)


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        ((401, {}, f"no such key: {KEY}".encode()), UnauthorizedError),
        ((400, {}, b"unknown field"), InvalidRequestError),
        ((429, BUSY, b"slow down"), RateLimitError),
        ((500, {}, b"oops"), EngineFailedError),
        ((502, {}, b"bad gateway"), ServerUnavailableError),
        ((504, {}, b"timeout"), RequestTimeoutError),
        ((200, {}, f"<html>{KEY}".encode()), TransportError),
        ((200, {}, f'{{"error": "{KEY}"}}'.encode()), EngineFailedError),
        ((200, {}, b"[1]"), TransportError),
        ((200, {}, b"[" * 100_000), TransportError),
        ((200, {"Content-Length": "100"}, b'{"choices": '), TransportError),
    ],
)
def test_each_failure_has_its_class_and_quotes_no_key(
    response: tuple[int, dict[str, str], bytes], kind: type[DraftproofError]
) -> None:
    with scripted_http(response) as script, pytest.raises(kind) as caught:
        list(connect(script.url).post("/v1/completions", {}))
    assert KEY not in str(caught.value) and KEY not in repr(caught.value.__context__)
    assert script.requests[0][1]["Authorization"] == f"Bearer {KEY}"


def test_a_busy_server_is_asked_again_as_often_as_is_counted() -> None:
    with scripted_http((429, BUSY, b""), (503, BUSY, b""), (200, {}, ANSWER)) as script:
        connection = connect(script.url)
        assert list(connection.post("/v1/completions", {})) == [Event(model="m")]
    assert connection.num_retries == 2


def test_no_server_is_no_answer() -> None:
    with scripted_http((200, {}, b"{}")) as script:
        url = script.url
    with pytest.raises(LATE_OR_NO_ANSWER):
        connect(url).get("/v1/models")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b'data: {"choices": []}\n\n', TransportError),
        (b"data: {bad}\n\n", TransportError),
        (b'data: {"error": {"message": "out of memory"}}\n\ndata: [DONE]\n\n', EngineFailedError),
    ],
)
def test_a_stream_that_ends_early_is_an_error(content: bytes, kind: type[DraftproofError]) -> None:
    with scripted_http((200, {}, content)) as script, pytest.raises(kind):
        list(connect(script.url).post("/v1/completions", {"stream": True}))


def test_a_whole_stream_is_read_though_the_connection_stays_open() -> None:
    stream = b"data: " + ANSWER + b"\n\ndata: [DONE]\n\n"
    with scripted_http((200, {"Content-Length": "1000"}, stream)) as script:
        events = list(connect(script.url).post("/v1/completions", {"n": 1, "stream": True}))
    assert events == [Event(model="m")]
    assert script.requests[0][0] == {"n": 1, "stream": True}


def test_keys_come_from_files_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CANDIDATE_KEY, "from-environment")
    assert read_key(None, CANDIDATE_KEY) == "from-environment"
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n", encoding="utf-8")
    assert read_key(file, CANDIDATE_KEY) == KEY
    for content in ("", f"{KEY}\nmore", "schlüssel"):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(InvalidRequestError) as caught:
            read_key(file, CANDIDATE_KEY)
        assert KEY not in str(caught.value)
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        read_key(tmp_path / "none", CANDIDATE_KEY)
    assert KEY not in repr(Endpoint("http://x", key=KEY))


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://a", "http://user:secret@a", "http://a?key=secret"])
def test_addresses_with_secrets_and_others_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Endpoint.of(url, "", "", {})
    assert "secret" not in str(caught.value)


def test_the_path_of_the_api_may_be_given_or_not() -> None:
    assert {Endpoint.of(f"http://a{end}", "", "", {}).url for end in ("", "/", "/v1", "/v1/")} == {"http://a"}
    assert json.dumps(Endpoint.of("http://a", "m", "", {"x": 1}).body) == '{"x": 1}'
