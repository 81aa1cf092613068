"""Tests of the reader of OpenAI-compatible answers: any pieces, any server, and no more than a limit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipelines import openai_stream
from pipelines.openai_stream import ENDED_EARLY, ENDLESS, GARBAGE, AnswerReader, Choice, UnreadableError, join

CHAT = {"index": 0, "delta": {"content": "Ä b", "reasoning": "hm"}, "finish_reason": None}
LAST = {"index": 0, "delta": {}, "finish_reason": "stop"}
OTHER = {"index": 1, "delta": {"refusal": "no"}, "finish_reason": "stop"}
PART = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "add", "arguments": '{"a"'}}]}
REST = {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}


def stream(*documents: Any, end: str = "data: [DONE]\n\n") -> bytes:
    lines = (f"event: x\r\ndata: {json.dumps(each)}\r\n\r\n" for each in documents)
    return "".join((": ping\n\n", *lines, end)).encode()


def read(content: bytes, piece: int = 1 << 20, *, is_stream: bool = True, **more: Any) -> dict[int, Choice]:
    reader, choices = AnswerReader(is_stream=is_stream, **more), {}
    for begin in range(0, len(content), piece):
        for event in reader.read(content[begin : begin + piece]):
            join(choices, event)
    for event in reader.end():
        join(choices, event)
    return choices


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_a_stream_is_read_whatever_its_pieces(piece: int) -> None:
    events = [{"choices": [each]} for each in (CHAT, {"delta": PART}, {"delta": REST}, OTHER, LAST)]
    choices = read(stream(*events), piece)
    first = choices[0]
    assert (first.text(), first.text("reasoning"), first.finish_reason) == ("Ä b", "hm", "stop")
    assert [(call.name, call.arguments) for call in first.tool_calls.values()] == [("add", '{"a": 1}')]
    assert (choices[1].text("refusal"), choices[1].finish_reason) == ("no", "stop")


def test_what_comes_behind_the_end_is_noticed() -> None:
    assert not read(stream({"choices": [CHAT]}, {"choices": [LAST]}))[0].goes_on
    assert read(stream({"choices": [LAST]}, {"choices": [CHAT]}))[0].goes_on


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"choices": 5},
        {"choices": ["text"]},
        {"choices": [{"text": 5}]},
        {"choices": [{"text": "a", "token_ids": ["5"]}]},
        {"choices": [{"text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": []}}]},
        {"choices": [], "usage": {"completion_tokens": "many"}},
        {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": {}}}]}}]},
    ],
)
def test_what_is_not_in_openais_form_is_garbage(document: Any) -> None:
    for content, is_stream in ((json.dumps(document).encode(), False), (stream(document), True)):
        with pytest.raises(UnreadableError) as caught:
            read(content, is_stream=is_stream)
        assert caught.value.fault == GARBAGE


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"[" * 100_000, GARBAGE),
        (b"data: " + b"[" * 100_000 + b"\n", GARBAGE),
        (b"<html>\n<p>busy\n</html>\n", GARBAGE),
        (b"", ENDED_EARLY),
        (stream({"choices": [CHAT]}, end=""), ENDED_EARLY),
    ],
)
def test_a_stream_that_is_none_or_has_no_end_says_so(content: bytes, fault: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        read(content)
    assert caught.value.fault == fault


@pytest.mark.parametrize("is_stream", [True, False])
def test_no_more_is_kept_than_the_limit(is_stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_stream, "MOST_EVENT_BYTES", 1000)
    monkeypatch.setattr(openai_stream, "MOST_ANSWER_BYTES", 1000)
    reader = AnswerReader(is_stream=is_stream)
    assert not list(reader.read(b"data: " + b"x" * 900))
    with pytest.raises(UnreadableError, match=ENDLESS):
        list(reader.read(b"x" * 200))
    assert reader.num_unread == 0


def test_a_stream_may_be_longer_than_an_event_but_not_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_stream, "MOST_EVENT_BYTES", 1000)
    monkeypatch.setattr(openai_stream, "MOST_STREAM_BYTES", 5000)
    assert read(stream(*[{"choices": [CHAT]}] * 30), 100)[0].text() == "Ä b" * 30
    with pytest.raises(UnreadableError, match=ENDLESS):
        read(stream(*[{"choices": [CHAT]}] * 60), 100)


def test_an_error_in_place_of_an_answer_is_no_garbage() -> None:
    for document, has_items in (
        ({"error": {"message": "full"}}, False),
        ({"type": "error", "message": "full"}, True),
        ({"type": "response.failed", "response": {"error": "full"}}, True),
        ({"status": "failed", "error": {"message": "full"}}, True),
    ):
        reader = AnswerReader(is_stream=True, has_items=has_items)
        [event] = reader.read(stream(document))
        assert "full" in event.error and not event.deltas
