"""Tests of ``draftproof chat`` with a stand-in for the server."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from pipelines.command_line import chat as command

RUNS = [{"source": "target", "text": "a"}, {"source": "draft_model", "text": "b"}]
USER, SYSTEM = "user", {"role": "system", "content": "short"}
CLIENT = httpx.Client
BUSY = httpx.Response(503, json={"error": {"message": "busy"}})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class StandIn(httpx.BaseTransport):
    """A server that streams "ab" twice; the first answer may fail."""

    def __init__(self, fails: Any = None) -> None:
        self.asked: list[dict[str, Any]] = []
        self.fails = fails

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/chat/completions"
        self.asked.append(json.loads(request.read()))
        if isinstance(self.fails, httpx.Response) and len(self.asked) == 1:
            return self.fails
        return httpx.Response(200, content=self._events())

    def _events(self) -> Iterator[bytes]:
        choice = {"index": 0, "delta": {"content": "ab"}, "token_sources": RUNS}
        for ending in ({}, {"finish_reason": "stop"}):
            yield b"data: " + json.dumps({"choices": [choice | ending]}).encode() + b"\n\n"
            if isinstance(self.fails, BaseException) and len(self.asked) == 1:
                raise self.fails
        yield b"data: [DONE]\n\n"

    @property
    def messages(self) -> list[list[str]]:
        return [[each["content"] for each in asked["messages"]] for asked in self.asked]


@pytest.fixture
def converse(monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(server: StandIn, lines: str, *options: str, terminal: bool = False) -> tuple[int, str]:
        out = Terminal() if terminal else io.StringIO()
        texts = iter(lines.splitlines())

        def typed(prompt: str) -> str:
            line = next(texts, None)
            if line is None:
                raise EOFError
            return line

        def connect(**given: Any) -> httpx.Client:
            return CLIENT(transport=server, **given)

        monkeypatch.setattr("builtins.input", typed)
        monkeypatch.setattr(command.sys, "stdin", Terminal() if terminal else io.StringIO(lines))
        monkeypatch.setattr(command.sys, "stdout", out)
        monkeypatch.setattr(command.httpx, "Client", connect)
        return command.main(["--url", "http://stand-in:1", *options]), out.getvalue()

    return run


def test_a_pipe_gets_the_answers_alone_and_the_history_is_kept(converse: Any) -> None:
    server = StandIn()
    code, out = converse(
        server, "one\n\ntwo\n", "--system", "short", "--temperature", "0", "--max-tokens", "9"
    )
    assert (code, out) == (0, "abab\n" * 2)
    assert server.messages == [["short", "one"], ["short", "one", "abab", "two"]]
    assert server.asked[0]["messages"][0] == SYSTEM
    assert (server.asked[0]["temperature"], server.asked[0]["max_tokens"]) == (0, 9)


def test_what_is_not_chosen_is_the_servers_choice(converse: Any) -> None:
    server = StandIn()
    converse(server, "one")
    asked = server.asked[0]
    assert asked["temperature"] is None and asked["max_tokens"] is None
    assert [each["role"] for each in asked["messages"]] == ["user"]


def test_draft_tokens_are_green_on_a_terminal_only(converse: Any) -> None:
    assert converse(StandIn(), "one", terminal=True)[1] == "a\x1b[32mb\x1b[0m" * 2 + "\n"
    assert "\x1b" not in converse(StandIn(), "one")[1]


def test_ctrl_c_keeps_what_there_is(converse: Any) -> None:
    server = StandIn(KeyboardInterrupt())
    assert converse(server, "one\ntwo\n", terminal=True)[0] == 0
    assert server.messages == [["one"], ["one", "ab", "two"]]


def test_ctrl_c_ends_a_pipe(converse: Any) -> None:
    server = StandIn(KeyboardInterrupt())
    assert converse(server, "one\ntwo\n")[0] == 130
    assert server.messages == [["one"]]


@pytest.mark.parametrize("fault", [BUSY, httpx.ReadError("gone"), httpx.Response(200, content=b"<html>\n")])
def test_an_error_ends_a_pipe_but_not_a_terminal(
    fault: Any, converse: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for terminal, code, asked in ((False, 1, 1), (True, 0, 2)):
        server = StandIn(fault)
        assert converse(server, "one\ntwo\n", terminal=terminal)[0] == code
        assert len(server.asked) == asked
        assert "error: " in capsys.readouterr().err


def test_an_api_key_comes_from_the_environment(converse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Keyed(StandIn):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            seen.append(request.headers.get("Authorization", ""))
            return super().handle_request(request)

    converse(Keyed(), "one")
    monkeypatch.setenv("DRAFTPROOF_API_KEY", "dp-1")
    converse(Keyed(), "one")
    assert seen == ["", "Bearer dp-1"]
