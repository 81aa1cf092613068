"""Tests of how answers are read while they pass through."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import pytest

from pipelines.router.observation import Difference
from pipelines.router.received_answer import first_difference
from pipelines.upstreams.answer import Answer
from pipelines.upstreams.call import UpstreamCall
from pipelines.upstreams.request import RESPONSES, ForwardedRequest


def event(text: str | None = None, end: str | None = None, **more: Any) -> dict[str, Any]:
    delta = {} if text is None else {"content": text}
    return {"model": "m", "choices": [{"index": 0, "delta": {**delta, **more}, "finish_reason": end}]}


def streamed(*events: dict[str, Any], done: bool = True) -> Answer:
    """Read a stream that arrives byte by byte, each token a second after the one before."""
    seconds = iter(range(1000))
    answer = Answer(is_stream=True, clock=lambda: float(next(seconds)))
    lines = [f"data: {json.dumps(each)}\r\n\r\n" for each in events]
    content = "".join([": comment\n\n", *lines, "data: [DONE]\n\n" if done else ""]).encode()
    for begin in range(len(content)):
        answer.read(content[begin : begin + 1])
    answer.end()
    return answer


def whole(text: str, end: str = "stop", **more: Any) -> Answer:
    answer = Answer(is_stream=False, clock=lambda: 0.0)
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": end, **more}
    answer.read(json.dumps({"model": "m", "choices": [choice], "usage": {"completion_tokens": 3}}).encode())
    answer.end()
    return answer


def test_a_stream_is_read_with_its_times() -> None:
    usage = {"model": "m", "choices": [], "usage": {"completion_tokens": 5}}
    answer = streamed(event(None, None, role="assistant"), event("Ä b"), event("c", "stop"), usage)
    assert (answer.fault, answer.text, answer.num_tokens, answer.model) == ("", "Ä bc", 5, "m")
    assert (answer.first_at_s, answer.longest_pause_s) == (0.0, 1.0)


def test_tokens_that_no_server_counts_are_estimated() -> None:
    assert streamed(event("12345678"), event("9", "stop")).num_tokens == 3


def test_calls_of_tools_are_joined() -> None:
    first = {"index": 0, "id": "a", "function": {"name": "add", "arguments": '{"a"'}}
    second = {"index": 0, "function": {"arguments": ": 1}"}}
    joined = streamed(event(tool_calls=[first]), event(tool_calls=[second]), event(None, "tool_calls"))
    assert joined.text == 'add{"a": 1}'
    other = streamed(event(tool_calls=[first]), event(None, "tool_calls"))
    assert first_difference(joined, other) == "text"


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (streamed(event("a", "stop"), done=False), "a stream that ended early"),
        (streamed(event("a")), "an answer that did not finish"),
        (streamed(), "an answer that did not finish"),
        (streamed(event("a"), {"error": {"message": "full"}}), "an error instead of an answer"),
        (streamed({"choices": "text"}), "garbage"),
        (whole("a", ""), "an answer that did not finish"),
        (streamed(event("a"), [1]), "garbage"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_whole_answer_has_a_fault(answer: Answer, fault: str) -> None:
    assert answer.fault == fault


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        (whole("a b"), whole("a b"), ""),
        (whole("a b"), whole("a c"), "text"),
        (whole("a b"), whole("a b", "length"), "finish_reason"),
        (whole("a b", token_ids=[1, 2]), whole("a b", token_ids=[1, 3]), "tokens"),
        (whole("a b", token_ids=[1, 2]), whole("a b"), ""),
        (streamed(event("a b", "stop")), whole("a b"), ""),
    ],
)
def test_the_first_difference_of_two_answers(one: Answer, other: Answer, difference: Difference) -> None:
    assert first_difference(one, other) == difference


def response(text: str, status: str = "completed", **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text}]
    items = [{"id": "random", "type": "message", "content": content, "status": status}]
    usage = {"output_tokens": 3}
    return {"object": "response", "status": status, "model": "m", "output": items, "usage": usage, **more}


def delta(text: str, kind: str = "output_text") -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "output_index": 0, "delta": text}


def items(*documents: dict[str, Any], is_stream: bool = True) -> Answer:
    """Read an answer of ``/v1/responses``, each part a second after the one before."""
    seconds = iter(range(1000))
    answer = Answer(is_stream=is_stream, clock=lambda: float(next(seconds)), has_items=True)
    for each in documents:
        data = json.dumps(each)
        answer.read((f"event: {each['type']}\ndata: {data}\n\n" if is_stream else data).encode())
    answer.end()
    return answer


BEGIN = {"type": "response.created", "response": response("", "in_progress", output=[], usage=None)}
INCOMPLETE = {"incomplete_details": {"reason": "max_output_tokens"}}


def test_a_response_is_read_as_a_chat_is() -> None:
    end = {"type": "response.completed", "response": response("a bc")}
    answer = items(BEGIN, delta("a b"), {"type": "response.output_text.done"}, delta("c"), end)
    assert (answer.fault, answer.text, answer.num_tokens, answer.model) == ("", "a bc", 3, "m")
    assert (answer.first_at_s, answer.longest_pause_s) == (0.0, 1.0)
    assert items(response("a bc"), is_stream=False).text == "a bc"


def test_calls_of_tools_in_a_response_are_compared() -> None:
    one, other = (
        items(
            response("", output=[{"type": "function_call", "name": "add", "arguments": given}]),
            is_stream=False,
        )
        for given in ('{"a": 1}', '{"a": 2}')
    )
    assert one.text == 'add{"a": 1}'
    assert first_difference(one, other) == "text"


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (items(BEGIN, delta("a")), "a stream that ended early"),
        (items(BEGIN, {"type": "error", "message": "full"}), "an error instead of an answer"),
        (items(BEGIN, {"type": "response.failed", "response": {}}), "an error instead of an answer"),
        (items(BEGIN, {"type": "response.completed", "response": None}), "garbage"),
        (
            items(response("a", "failed", error={"code": "x"}), is_stream=False),
            "an error instead of an answer",
        ),
        (items(response("a", "queued"), is_stream=False), "an answer that did not finish"),
        (items({"choices": []}, is_stream=False), "garbage"),
    ],
)
def test_what_is_no_whole_response_has_a_fault(answer: Answer, fault: str) -> None:
    assert answer.fault == fault


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        (response("a"), response("a", output=response("a")["output"], id="resp_2"), ""),
        (response("a"), response("b"), "text"),
        (response("a"), response("a", "incomplete", **INCOMPLETE), "finish_reason"),
        (response("a"), response("a", usage={"output_tokens": 4}), "sequence_length"),
    ],
)
def test_the_first_difference_of_two_responses(
    one: dict[str, Any], other: dict[str, Any], difference: Difference
) -> None:
    assert first_difference(*(items(each, is_stream=False) for each in (one, other))) == difference


def test_a_stream_that_says_something_else_than_its_end_differs() -> None:
    end = {"type": "response.completed", "response": response("ab")}
    assert first_difference(items(BEGIN, delta("ab"), end), items(BEGIN, delta("ax"), end)) == "text"


@pytest.mark.parametrize(
    ("path", "fields", "has_effects"),
    [
        (RESPONSES, {}, True),
        (RESPONSES, {"store": None}, True),
        (RESPONSES, {"store": False}, False),
        (RESPONSES, {"store": False, "tools": [{"type": "function"}, {"type": "custom"}]}, False),
        (RESPONSES, {"store": False, "tools": [{"type": "function"}, {"type": "mcp"}]}, True),
        (RESPONSES, {"store": False, "tools": ["web_search"]}, True),
        ("/v1/chat/completions", {}, False),
        ("/v1/chat/completions", {"store": True}, True),
        ("/v1/chat/completions", {"tools": [{"type": "code_interpreter"}]}, True),
        ("/v1/completions", {}, False),
    ],
)
def test_what_does_something_besides_answering_is_not_repeated(
    path: str, fields: dict[str, Any], has_effects: bool
) -> None:
    content = json.dumps({"temperature": 0, "stream": True, **fields}).encode()
    call = UpstreamCall(ForwardedRequest.of(path, content, "", ""), {}, Mock())
    assert call.replay_arms == (() if has_effects else ("candidate", "stable"))
    assert call.may_hedge("candidate") is not has_effects
