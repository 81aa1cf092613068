"""Tests of any body: each is answered, or refused with the API's error object and the right status.

hypothesis mixes the fields of the OpenAPI document with values of every type, and damages the bytes. A few
with a fixed seed in ``make test``, a thousand with another seed at each run in ``make test-all``.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.deploy.server import Server
from tests.integration.front_door.conftest import MODEL, url_of
from tests.integration.front_door.test_restart import front_door

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door")]

VALID: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "/v1/responses": {"input": "a", "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "a"}]},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [5]},
}
TEXTS = st.text(max_size=20) | st.sampled_from([MODEL, "user", "a" * 5000, "\0", "<|endoftext|>", "ä\u2028"])
NUMBERS = (
    st.integers(-3, 130)
    | st.sampled_from([2**31, 2**32, 2**63, 2**64, 10**30, -(2**63) - 1])
    | st.floats(allow_nan=False, allow_infinity=False)
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


# Blocks of Anthropic's API, each with keys of any of them.
_TOOLS = ("tool_use", "tool_result", "custom", "tool", "any")
_KINDS = ("text", "thinking", "redacted_thinking", "image", *_TOOLS)
_KEYS = ("text", "thinking", "id", "name", "input", "tool_use_id", "content", "is_error", "input_schema")
BLOCKS = st.recursive(
    st.fixed_dictionaries({"type": st.sampled_from(_KINDS)}),
    lambda inner: st.fixed_dictionaries(
        {"type": st.sampled_from(_KINDS)},
        optional={key: TEXTS | st.just({}) | st.lists(inner, max_size=2) | ANYTHING for key in _KEYS},
    ),
    max_leaves=6,
)
TURNS = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": TEXTS | st.lists(BLOCKS, max_size=3)}
)
CONVERSATIONS = st.fixed_dictionaries(
    {"messages": st.lists(TURNS, max_size=4)},
    optional={
        "system": TEXTS | st.lists(BLOCKS),
        "tools": st.lists(BLOCKS, max_size=2),
        "tool_choice": BLOCKS,
    },
)

# Items of /v1/responses, each with keys of any of them, and functions with schemas of any keywords.
_ITEM_KINDS = (
    "message",
    "function_call",
    "function_call_output",
    "reasoning",
    "custom_tool_call",
    "item_reference",
)
_PARTS = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["input_text", "x"])}, optional={"text": TEXTS})
)
_ITEM_KEYS = ("id", "call_id", "name", "arguments", "output", "content", "summary", "role", "input")
ITEMS = st.fixed_dictionaries(
    {"type": st.sampled_from(_ITEM_KINDS)},
    optional={key: TEXTS | _PARTS | ANYTHING for key in _ITEM_KEYS},
)
_KEYWORDS = (
    "type",
    "enum",
    "const",
    "$ref",
    "pattern",
    "minLength",
    "items",
    "required",
    "additionalProperties",
)
SCHEMAS = st.recursive(
    st.fixed_dictionaries({"type": st.sampled_from(["object", "string", "array", "integer", "null"])}),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(TEXTS, inner, max_size=3),
            "anyOf": st.lists(inner, max_size=3),
            **{key: inner | TEXTS | ANYTHING for key in _KEYWORDS},
        },
    ),
    max_leaves=8,
)
FUNCTIONS = st.fixed_dictionaries(
    {"type": st.just("function"), "name": st.sampled_from(["f", "g.h", ""])},
    optional={"parameters": SCHEMAS, "strict": st.booleans() | ANYTHING},
)
RESPONSES = st.fixed_dictionaries(
    {"input": TEXTS | st.lists(ITEMS, max_size=3)},
    optional={
        "tools": st.lists(FUNCTIONS, max_size=2),
        "tool_choice": st.sampled_from(["auto", "required", "none"]),
    },
)


def posts(document: dict[str, Any]) -> dict[str, list[str]]:
    """Return the names of the fields of each path with a body."""
    schemas = document["components"]["schemas"]
    found = {}
    for path, methods in document["paths"].items():
        if "post" in methods:
            reference = methods["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            found[path] = list(schemas[reference.rpartition("/")[2]]["properties"])
    return found


@st.composite
def requests(draw: st.DrawFn, fields: dict[str, list[str]]) -> tuple[str, bytes]:
    """Return a path and a body: a valid one with changed fields, perhaps damaged."""
    path = draw(st.sampled_from(sorted(fields)))
    changed = draw(st.dictionaries(st.sampled_from(fields[path]) | TEXTS, ANYTHING, max_size=4))
    if path.startswith("/v1/messages"):
        changed = draw(CONVERSATIONS) | (changed if draw(st.booleans()) else {})
    elif path == "/v1/responses" and draw(st.booleans()):
        changed |= draw(RESPONSES)
    body = json.dumps({**VALID.get(path, {}), **changed}).encode()
    kind = draw(st.sampled_from(["whole", "whole", "whole", "cut", "byte", "other"]))
    place = draw(st.integers(0, len(body) - 1))
    if kind == "cut":
        return path, body[:place]
    if kind == "byte":
        return path, body[:place] + draw(st.binary(max_size=3)) + body[place + 1 :]
    if kind == "other":
        return path, draw(st.binary(max_size=50) | ANYTHING.map(lambda value: json.dumps(value).encode()))
    return path, body


def check(response: httpx.Response) -> None:
    """Check that a response is an answer, or the error object of its API with a status that fits."""
    text = response.text
    assert "Traceback" not in text and 'File "' not in text, text
    if response.headers["Content-Type"].startswith("text/event-stream"):
        *events, last = [line.partition("data: ")[2] for line in text.splitlines() if "data: " in line]
        assert last in ("[DONE]", '{"type":"message_stop"}')
        assert not any(json.loads(event).get("error") for event in events), text
        return
    document = response.json()
    if response.status_code == 200:
        assert document.get("error") is None  # /v1/responses always has it
        return
    assert response.status_code in (400, 404), text
    error = document["error"]
    if document.get("type") == "error":  # Anthropic's
        assert set(document) == {"type", "error", "request_id"}
        assert response.status_code == 400 or error.pop("type") == "not_found_error"
        error["type"] = "invalid_request_error"
    assert set(error) == {"message", "type", "param", "code", "what", "remedy"}
    assert error["type"] == "invalid_request_error" and error["message"] and error["remedy"]
    assert len(text) < 5000


def send(server: Server, max_examples: int, *, is_repeated: bool) -> Counter[int]:
    """Send bodies; return how many had each status."""
    statuses: Counter[int] = Counter()
    process, began = front_door(server), server.log.stat().st_size
    with httpx.Client(base_url=url_of(server), timeout=120, trust_env=False) as client:
        fields = posts(client.get("/openapi.json").json())
        assert set(VALID) <= set(fields), "every path with a body is tried"

        @settings(
            max_examples=max_examples,
            derandomize=is_repeated,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(requests(fields))
        def try_one(sent: tuple[str, bytes]) -> None:
            path, body = sent
            response = client.post(path, content=body)
            check(response)
            statuses[response.status_code] += 1

        try_one()
    assert front_door(server) == process, "it was replaced"
    written = server.log.read_bytes()[began:]
    assert b"Traceback" not in written, written.decode()
    return statuses


def test_a_few_bodies(door: Server) -> None:
    statuses = send(door, 30, is_repeated=True)
    assert statuses[200] > 1 and statuses[400] > 6, statuses


@pytest.mark.long
def test_a_thousand_bodies(door: Server) -> None:
    statuses = send(door, 1000, is_repeated=False)
    assert statuses[200] > 50 and statuses[400] > 200, statuses
