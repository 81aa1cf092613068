"""What bad input gets from a real Triton server, and that nobody else notices."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pipelines.client import CompletionRequest
from pipelines.deploy import Server
from pipelines.errors import (
    DraftproofError,
    InvalidRequestError,
    PromptTooLongError,
    RequestTimeoutError,
    from_wire,
)
from tests.integration.conftest import (
    MAX_DRAFT_LEN,
    grpc_client,
    post,
)

pytestmark = pytest.mark.triton

BAD_BODIES: dict[str, tuple[dict[str, Any] | bytes, type[DraftproofError], str]] = {
    "empty prompt": ({"text_input": "", "max_tokens": 4}, InvalidRequestError, "prompt is empty"),
    "max_tokens of 0": ({"text_input": "x", "max_tokens": 0}, InvalidRequestError, "max_tokens=0"),
    "negative max_tokens": ({"text_input": "x", "max_tokens": -5}, InvalidRequestError, "max_tokens=-5"),
    "max_tokens over the limit": ({"text_input": "x", "max_tokens": 10**6}, PromptTooLongError, "1000000"),
    "prompt too long": ({"text_input": "x " * 600, "max_tokens": 4}, PromptTooLongError, "max_seq_len"),
    "prompt far too long": ({"text_input": "x" * 10**6, "max_tokens": 4}, PromptTooLongError, "1000000"),
    "too many draft tokens": (
        {"text_input": "x", "max_tokens": 4, "num_draft_tokens": MAX_DRAFT_LEN + 1},
        InvalidRequestError,
        f"max_draft_len={MAX_DRAFT_LEN}",
    ),
    "negative draft tokens": (
        {"text_input": "x", "max_tokens": 4, "num_draft_tokens": -1},
        InvalidRequestError,
        "num_draft_tokens=-1",
    ),
    "invalid UTF-8": (b'{"text_input": "caf\xe9", "max_tokens": 4}', InvalidRequestError, "0xe9"),
    "NaN temperature": (
        b'{"text_input": "x", "max_tokens": 4, "temperature": NaN}',
        InvalidRequestError,
        "temperature=nan",
    ),
    "negative temperature": (
        {"text_input": "x", "max_tokens": 4, "temperature": -0.5},
        InvalidRequestError,
        "temperature=-0.5",
    ),
    "top_p of 0": ({"text_input": "x", "max_tokens": 4, "top_p": 0.0}, InvalidRequestError, "top_p"),
    "negative top_k": ({"text_input": "x", "max_tokens": 4, "top_k": -1}, InvalidRequestError, "top_k=-1"),
    "empty stop word": (
        {"text_input": "x", "max_tokens": 4, "stop_words": ["a", ""]},
        InvalidRequestError,
        "stop word",
    ),
    "special token as stop word": (
        {"text_input": "x", "max_tokens": 4, "stop_words": ["<|endoftext|>"]},
        InvalidRequestError,
        "end_id",
    ),
    "too many stop words": (
        {"text_input": "x", "max_tokens": 4, "stop_words": ["a"] * 33},
        InvalidRequestError,
        "at most 32",
    ),
    "misspelt parameter": (
        {"text_input": "x", "max_tokens": 4, "temprature": 0.5},
        InvalidRequestError,
        "did you mean 'temperature'",
    ),
    "deadline passed": (
        {"text_input": "x", "max_tokens": 4, "parameters": {"timeout": 1}},
        RequestTimeoutError,
        "deadline",
    ),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_input_gets_its_error_within_a_second_and_harms_nobody(server: Server, name: str) -> None:
    body, kind, words = BAD_BODIES[name]
    request = CompletionRequest("def main(", max_tokens=100)
    with grpc_client(server) as client:
        bystander = client.stream(request)
        began_s = time.monotonic()
        reply = post(server, body)
        seconds = time.monotonic() - began_s
        assert len(bystander.result().output_ids) == 100
    error = from_wire(reply.json()["error"])
    assert type(error) is kind
    assert words in str(error)
    assert "Traceback" not in reply.text
    assert seconds < 1.0


@pytest.mark.parametrize(
    "body",
    [
        {"input_ids": [5], "input_lengths": 1, "request_output_len": 4, "stop_words_list": [9, 9, 2, 1]},
        {"input_ids": [5], "input_lengths": 1, "request_output_len": 4, "stop_words_list": [9, -1, 7, -1]},
        {"input_ids": [5], "input_lengths": 7, "request_output_len": 4},
        {"input_ids": [-5], "input_lengths": 1, "request_output_len": 4},
        {"input_ids": [10**6], "input_lengths": 1, "request_output_len": 4},
        {"input_ids": [5], "input_lengths": 1, "request_output_len": 4, "prompt_length": 2},
    ],
)
def test_malformed_tensors_are_refused_by_the_engine_models(server: Server, body: dict[str, Any]) -> None:
    reply = post(server, body, "target")
    assert isinstance(from_wire(reply.json()["error"]), InvalidRequestError), reply.text
