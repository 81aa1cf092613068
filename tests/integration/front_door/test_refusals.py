"""Tests of requests that cannot be answered: each has OpenAI's error with the field that is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.deploy.server import Server
from tests.integration.front_door.conftest import post

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door")]

LEAST: dict[str, Any] = {
    "/v1/completions": {"prompt": "def f(", "max_tokens": 4},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4},
    "/v1/responses": {"input": "a", "max_output_tokens": 4},
}
LONG = "a " * 600
STRANGE = {"type": "strange"}
STRANGE_TOOL = [{"type": "function", "function": {"name": "a", "parameters": STRANGE}}]
FORM: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "a"}}

COMPLETIONS: list[tuple[dict[str, Any], str | None]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [99999]}, None),
    ({"prompt": ""}, "prompt"),
    ({"prompt": LONG}, "prompt"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"max_tokens": 2**40}, "max_tokens"),
    ({"max_tokens": 0}, None),
    ({"temperature": -1}, "temperature"),
    ({"temprature": 1}, "temprature"),
    ({"stop": 3}, "stop"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"n": 0}, "n"),
    ({"n": 1000}, "n"),
    ({"n": 13}, None),
    ({"logprobs": 21}, "logprobs"),
    ({"seed": -2}, "seed"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
    (
        {"response_format": {**FORM, "json_schema": {"name": "a", "strict": True, "schema": STRANGE}}},
        "response_format",
    ),
    ({"x" * 10000: 1}, "x" * 300),
]
CHAT: list[tuple[dict[str, Any], str | None]] = [
    ({"messages": []}, None),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"content": "a"}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    ({"messages": [{"role": "user", "content": LONG}]}, "messages"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "messages"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": FORM}, "response_format"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": STRANGE_TOOL, "tool_choice": "required"}, "tools"),
    ({"tools": STRANGE_TOOL, "tool_choice": "required", "response_format": {"type": "text"}}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "a"}}], "tool_choice": "maybe"}, "tool_choice"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
]
RESPONSES: list[tuple[dict[str, Any], str | None]] = [
    ({"conversation": "conv_1"}, "conversation"),
    ({"background": True}, "background"),
    ({"n": 2}, "n"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"moderation": {}}, "moderation"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "messages"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"include": ["message.output_text.logprobs"]}, "include"),
    ({"include": "message.output_text.logprobs"}, "include"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "response_format"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": STRANGE}}}, "text"),
]
ROWS = [
    (path, *row) for path, rows in zip(LEAST, (COMPLETIONS, CHAT, RESPONSES), strict=True) for row in rows
]


@pytest.mark.parametrize(("path", "changes", "param"), ROWS)
def test_a_wrong_field_is_refused_by_name(
    door: Server, path: str, changes: dict[str, Any], param: str | None
) -> None:
    for streaming in (False, True):
        response = post(door, path, {**LEAST[path], **changes, "stream": streaming})
        error = response.json()["error"]
        assert (response.status_code, error["type"]) == (400, "invalid_request_error"), error
        assert all(error[part] for part in ("message", "what", "remedy")), error
        assert param is None or error["param"] == param, error


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"a"', b'{"prompt": "\\ud800"}', b"\xff\xfe", b"[" * 10000]
)
def test_what_is_no_json_object_is_refused(door: Server, body: bytes) -> None:
    response = post(door, "/v1/completions", body)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


def test_other_paths_methods_and_sizes_have_their_status(door: Server) -> None:
    assert post(door, "/v1/nothing", {}).status_code == 404
    wrong = post(door, "/v1/models", {})
    assert (wrong.status_code, wrong.headers["Allow"]) == (405, "GET,HEAD")
    assert "GET" in wrong.json()["error"]["remedy"]
    large = post(door, "/v1/completions", b" " * (3 << 20))
    assert large.status_code == 413 and "the body is larger than" in large.json()["error"]["what"]
