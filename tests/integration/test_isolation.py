"""Tests that clients of a real server do not affect each other, and that every time limit is honoured."""

from __future__ import annotations

import json
import queue
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy.typing as npt
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from pipelines.client import CompletionRequest
from pipelines.client.refusals import refusal
from pipelines.deploy.server import Server
from pipelines.errors import DraftproofError, InvalidRequestError, RequestCancelledError
from tests.integration.conftest import grpc_client, infer_inputs, post, text_tensors
from tests.support.fake_triton import engine_tensors

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("server")]

MODELS = ("generate", "router", "speculative", "target")


class Stream:
    """Sends requests over one gRPC stream, with ids and parameters of their own."""

    def __init__(self, server: Server) -> None:
        self._answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.ports.grpc}")
        # With the key: what operators cannot do to others, clients cannot either.
        self._client.start_stream(
            lambda result, error: self._answers.put((result, error)), headers={"draftproof-key": server.key}
        )

    def send(
        self,
        model: str,
        tensors: dict[str, npt.NDArray[Any]],
        request_id: str = "",
        parameters: dict[str, Any] | None = None,
    ) -> None:
        self._client.async_stream_infer(
            model,
            infer_inputs(tensors),
            request_id=request_id,
            enable_empty_final_response=True,
            parameters=parameters,
        )

    def ends(self, number: int) -> list[DraftproofError | None]:
        """Return how each of the next requests ends: its error, or None."""
        found: list[DraftproofError | None] = []
        while len(found) < number:
            result, error = self._answers.get(timeout=120)
            if error is not None:
                found.append(refusal(error.message()))
            elif result.get_response().parameters["triton_final_response"].bool_param:
                found.append(None)
        return found

    def close(self) -> None:
        self._client.stop_stream()
        self._client.close()


def stop_tensors() -> dict[str, npt.NDArray[Any]]:
    return engine_tensors([5], 1, stop=True)


@pytest.mark.parametrize("model", MODELS)
def test_a_stop_reaches_only_what_came_under_exactly_its_id(server: Server, model: str) -> None:
    """Requests run under several ids while another client stops every id that it could guess."""
    is_text = model in ("generate", "router")
    long = {"max_tokens": 200, "end_id": -1}
    tensors = (
        text_tensors(text_input="def main(", **long)
        if is_text
        else engine_tensors([5, 6, 7], long["max_tokens"], end_id=-1)
    )
    victim, attacker = Stream(server), Stream(server)
    engine = "target" if model == "target" else "speculative"
    try:
        for request_id in ("", "mine", "mine#1"):
            victim.send(model, tensors, request_id)
        guesses = ["request", "request#1", model, f"{model}/1", "mine/1", "#", "mine#2", "min"]
        if is_text:
            guesses += ["mine", "mine#1"]  # another model's client is another client
        for guess in guesses:
            attacker.send(engine, stop_tensors(), guess)
        assert attacker.ends(len(guesses)) == [None] * len(guesses)
        attacker.send(engine, stop_tensors())
        (error,) = attacker.ends(1)
        assert type(error) is InvalidRequestError and "stop needs a request id" in str(error)
        assert victim.ends(3) == [None] * 3
    finally:
        victim.close()
        attacker.close()


def test_a_stop_with_its_own_id_ends_a_request(server: Server) -> None:
    stream = Stream(server)
    try:
        stream.send("speculative", engine_tensors([5, 6, 7], 480, end_id=-1), "a UUID")
        stream.send("speculative", stop_tensors(), "a UUID")
        assert {type(end) for end in stream.ends(2)} == {type(None), RequestCancelledError}
    finally:
        stream.close()


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
        ({"session_id": HUGE}, "the session_id is too long"),
        ({HUGE: 1}, "the parameters of the request cannot be used"),
        ({"p": HUGE}, "the request's parameters are too long"),
        ({"id": HUGE}, "request id is too long"),
        ({"stop_words": [HUGE]}, "a stop word is empty or too long"),
        ({"stop_words": ["x"] * 10_000}, "10000 stop words"),
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
