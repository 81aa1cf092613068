"""Tests that clients of a real server do not affect each other, and that every time limit is honoured."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from pipelines.client import CompletionRequest
from pipelines.client.refusals import refusal
from pipelines.deploy.server import Server
from pipelines.errors import InvalidRequestError
from tests.integration.conftest import grpc_client, infer_inputs, post, text_tensors

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("server")]

HUGE = "x" * 10**6


@pytest.mark.parametrize("timeout", ['"1"', "0.5", "-1", "NaN", "99999999999999999999"])
def test_a_timeout_is_honoured_or_refused(server: Server, timeout: str) -> None:
    for model, inputs in (
        ("generate", '"text_input": "x", "max_tokens": 4'),
        ("speculative", '"input_ids": [5], "input_lengths": 1, "request_output_len": 4'),
    ):
        error = refusal(post(server, f'{{{inputs}, "timeout": {timeout}}}'.encode(), model).json()["error"])
        assert type(error) is InvalidRequestError and "timeout" in str(error)
    assert "text_output" in post(server, {"text_input": "x", "max_tokens": 4, "timeout": 0}).json()


@pytest.mark.parametrize("timeout", [-1, 2**62])
def test_over_grpc_a_timeout_is_honoured_or_refused(server: Server, timeout: int) -> None:
    tensors = infer_inputs(text_tensors(text_input="x", max_tokens=4))
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.ports.grpc}") as client:
        with pytest.raises(InferenceServerException, match="timeout") as refused:
            client.infer("generate", tensors, timeout=timeout)
        assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"session_id": HUGE}, "the session_id has 1000000 bytes"),
        ({HUGE: 1}, "the parameters of the request cannot be used"),
        ({"p": HUGE}, "more than 16384"),
        ({"id": HUGE}, "the request id, of 1000000 bytes"),
        ({"stop_words": [HUGE]}, "a stop word is empty or too long"),
        ({"stop_words": ["x"] * 10_000}, "too many stop words: 10000"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_is_too_long_is_refused_in_few_words_and_blames_no_arm(
    server: Server, body: dict[str, Any], words: str
) -> None:
    for _ in range(6):  # more than enough to take an arm out
        error = refusal(post(server, {"text_input": "x", "max_tokens": 4, **body}, "router").json()["error"])
        assert type(error) is InvalidRequestError and words in str(error)
        assert len(str(error)) < 1000
    with grpc_client(server) as client:
        assert client.generate(CompletionRequest("x", max_tokens=1), "router").arm == "stable"


def test_nobody_waits_for_anothers_long_prompts(server: Server) -> None:
    """Prompts have the largest allowed size, beside a stream whose answer must not change."""
    request = CompletionRequest("def main(", max_tokens=100, seed=3)
    body = json.dumps({"text_input": "x y " * 3000, "max_tokens": 4}).encode()
    with grpc_client(server) as client, ThreadPoolExecutor(8) as pool:
        expected = client.generate(request).output_ids
        replies = [pool.submit(post, server, body) for _ in range(24)]
        assert client.generate(request).output_ids == expected
        for reply in replies:
            error = refusal(reply.result().json()["error"])
            assert "too long" in str(error) or "busy" in error.code
